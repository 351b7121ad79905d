"""The numbers of `recall` are fitted to the choices that the target makes along accepted paths."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from configs.fields import SettingsError
from configs.methods import MethodSettings, fitted_numbers
from decoding.images import Job
from drafters.recall import FITTED_TO_TINY, RecallNumbers
from runs.recall_fit import METHOD, Recorder, _better, fit_numbers

JOBS = [Job(str(number), "a red dot", number) for number in range(12)]


def choices(least: float, slope: float) -> tuple[Tensor, ...]:
    """Made with this sharpness."""
    values, similarity = torch.randn(4000, 3), torch.rand(4000)
    sharpness = torch.exp(least + slope * similarity**3)
    chosen = torch.multinomial((sharpness[:, None] * values).softmax(-1), 1)[:, 0]
    return values, similarity, chosen


def test_a_fit_finds_the_sharpness_that_choices_were_made_with() -> None:
    torch.manual_seed(0)
    current = FITTED_TO_TINY.sharpness
    fitted = _better(current, choices(0.2, 1.8), choices(0.2, 1.8))
    assert fitted == pytest.approx((0.2, 1.8), abs=0.15)
    assert _better(current, choices(0.2, 1.8), choices(*current)) == current


@torch.inference_mode()
def test_what_is_recorded_is_what_the_rounds_decided(session) -> None:
    engine = session.open_engine(METHOD, images=1)
    recorder = Recorder(engine)
    steps = list(engine.generate(JOBS[:4]))
    codes = [image.codes.tolist() for step in steps for image in step.finished]
    assert recorder.rows
    sizes = {tuple(part.shape for part in row) for row in recorder.rows}
    assert sizes == {((3,), (), ())}
    assert 0 < len(recorder.rows) < sum(map(len, codes))
    assert all((values.diff() <= 0).all() and which < 3 for values, _, which in recorder.rows)


def test_a_fit_takes_images_of_the_model_and_enough_of_them(session) -> None:
    opened = partial(session.open_engine, images=1)
    fitted = fit_numbers(opened, JOBS, 100.0)
    assert fitted.sharpness != FITTED_TO_TINY.sharpness
    assert replace(fitted, sharpness=FITTED_TO_TINY.sharpness) == FITTED_TO_TINY
    assert fit_numbers(opened, JOBS[:2], 100.0) is None


def test_numbers_are_six(session) -> None:
    numbers = "-0.34/1.32/0/1.66/-0.97/2.56"
    assert RecallNumbers.of(fitted_numbers(numbers)) == FITTED_TO_TINY
    method = MethodSettings("recall", recall_numbers="0/1/0/1/0/1")
    drafter = session.open_engine(method).speculation.drafter
    assert drafter.numbers.share == (0.0, 1.0)
    for wrong in ("1/2", "1/2/3/4/5/x", "1/2/3/4/5/nan", "0/0/0/1/0/1000"):
        with pytest.raises(SettingsError, match="--recall_numbers: expected six numbers.*got .*"):
            MethodSettings("recall", recall_numbers=wrong)
    with pytest.raises(SettingsError, match="--recall_numbers: .*only with --method recall or"):
        MethodSettings.of({"method": "jacobi", "recall_numbers": numbers})
