"""The numbers of `recall` are fitted to the choices that the target makes along accepted paths."""

from functools import partial

import pytest
import torch

from configs.fields import SettingsError
from configs.methods import MethodSettings, fitted_numbers
from decoding.images import Job
from drafters.recall import FITTED_TO_TINY, RecallNumbers
from runs.recall_fit import (
    MIXED,
    Recorder,
    _fitted,
    _loss_alone,
    _tokens_per_round,
    _with,
    fit_numbers,
)

JOBS = [Job(str(number), "a red dot", number) for number in range(12)]


def test_a_fit_finds_the_trust_that_choices_were_made_with() -> None:
    torch.manual_seed(0)
    recalled, similarity = torch.randn(8000, 12).log_softmax(-1), torch.rand(8000)
    trust = torch.exp(0.2 + 1.8 * similarity**3)
    chosen = torch.multinomial((trust[:, None] * recalled).softmax(-1), 1)[:, 0]
    nothing = torch.zeros(8000)
    data = recalled, recalled, nothing[:, None], nothing, similarity, chosen
    (fitted,) = _fitted(_loss_alone, [FITTED_TO_TINY.trust_alone], data)
    assert fitted == pytest.approx((0.2, 1.8), abs=0.15)


@torch.inference_mode()
def test_what_is_recorded_is_what_the_rounds_decided(session) -> None:
    engine = session.open_engine(MIXED, images=1)
    recorder = Recorder(engine)
    steps = list(engine.generate(JOBS[:4]))
    codes = [image.codes.tolist() for step in steps for image in step.finished]
    assert recorder.mixed and recorder.rows
    sizes = {tuple(part.shape for part in row) for row in recorder.rows}
    assert sizes == {((24,), (24,), (24,), (), (), ())}
    chosen = [int(row[-1]) for row in recorder.rows]
    decided = iter(code for image in codes for code in image)
    assert all(code in decided for code in chosen), "in the order of the images' codes"


def test_a_fit_takes_images_of_the_model_and_enough_of_them(session, monkeypatch) -> None:
    """Numbers stay those of the included model where rounds accept no more with others."""
    opened = partial(session.open_engine, images=1)
    for name, more in (("fitted", 1.0), ("kept", -1.0)):
        taus = iter([2.0, 2.0 + more] * 2)
        monkeypatch.setattr("runs.recall_fit._tokens_per_round", lambda *_, t=taus: next(t))
        fitted = fit_numbers(opened, JOBS, True, 100.0)
        assert isinstance(fitted, RecallNumbers)
        assert (fitted == FITTED_TO_TINY) == (name == "kept")
    assert fit_numbers(opened, JOBS[:2], True, 100.0) is None


def test_tokens_per_round_are_those_of_the_images(session) -> None:
    numbers = RecallNumbers((0.0, 1.0), (0.0, 1.0), (0.0, 1.0))
    engine = session.open_engine(_with(MIXED, numbers), images=1)
    assert engine.speculation.drafter.far.numbers == numbers
    images = [image for step in engine.generate(JOBS[:3]) for image in step.finished]
    expected = sum(len(i.codes) - 1 for i in images) / sum(i.target_forwards - 1 for i in images)
    assert _tokens_per_round(engine, JOBS[:3], 100.0) == pytest.approx(expected)


def test_numbers_are_six(session) -> None:
    numbers = "-0.34/1.32/0/1.66/-0.97/2.56"
    assert RecallNumbers.of(fitted_numbers(numbers)) == FITTED_TO_TINY
    method = MethodSettings("recall", recall_numbers="0/1/0/1/0/1")
    drafter = session.open_engine(method).speculation.drafter
    assert drafter.numbers.share == (0.0, 1.0)
    for wrong in ("1/2", "1/2/3/4/5/x", "1/2/3/4/5/nan"):
        with pytest.raises(SettingsError, match="--recall_numbers: expected six numbers.*got .*"):
            MethodSettings("recall", recall_numbers=wrong)
    with pytest.raises(SettingsError, match="--recall_numbers: .*only with --method recall or"):
        MethodSettings("jacobi", recall_numbers=numbers)
