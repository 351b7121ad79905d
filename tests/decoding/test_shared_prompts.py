"""Images of one prompt share what the target read of it; their tokens are those of images alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from test_engine import METHODS, codes

from configs.schema import MethodSettings
from decoding.cache import KVCache
from decoding.engine import Engine
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from models.guidance import SequentialGuidance
from runs.methods import build_engine
from runs.session import Session

WARM = SamplingDistribution()
TEXTS = ["a cat"] * 4 + ["two blue dogs on a mat"] * 3 + ["a cat", "a red cat", "a red cat"]
JOBS = [Job(str(number), text, 50 + number) for number, text in enumerate(TEXTS)]
CHANGES = 4  # how often another prompt begins
NAMES = ["small eagle2", "adt", "jacobi", "block", "eagle recall"]


def engine_of(session: Session, method: MethodSettings, images: int) -> Engine:
    return build_engine(session.target, session.drafter, WARM, method, images)


@pytest.fixture(scope="module")
def alone(session: Session) -> dict[str, list[int]]:
    """The baseline's codes; every image has an engine of its own, which reads its prompt."""
    method = MethodSettings(method="ar")
    return {job.id: codes(engine_of(session, method, 1), [job])[job.id] for job in JOBS}


@pytest.fixture
def reads(session: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the calls that read a prompt: tokens or text encoder, and the target."""
    called: list[str] = []
    for name in ("prompt", "read"):
        real = getattr(type(session.target), name)

        def counted(self, *arguments, name=name, real=real):
            called.append(name)
            return real(self, *arguments)

        monkeypatch.setattr(type(session.target), name, counted)
    # length counts the tokens of the longest prompt, once per prompt that opens the batch
    monkeypatch.setattr(type(session.target), "length", lambda self, text: len(text) + 4)
    return called


@pytest.mark.parametrize("images", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["plain", *NAMES])
def test_a_prompt_is_read_once_for_its_images(name, images, session, alone, reads) -> None:
    method = METHODS.get(name, MethodSettings(method="ar"))
    engine = engine_of(session, method, images)
    assert codes(engine, JOBS) == alone
    assert reads == ["prompt", "read"] * CHANGES


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("name", ["plain", *NAMES])
def test_the_drafter_reads_a_prompt_once_too(name, images, session, alone, monkeypatch) -> None:
    """Rows begin anew once per prompt that is read: the target's and, where there is one, its."""
    method, begun = METHODS.get(name, MethodSettings(method="ar")), []
    real = KVCache.prefill
    monkeypatch.setattr(KVCache, "prefill", lambda *given: begun.append(1) or real(*given))
    assert codes(engine_of(session, method, images), JOBS) == alone
    assert len(begun) == CHANGES * (2 if method.drafted else 1)


def test_every_engine_reads_anew(session, alone, reads) -> None:
    """What an earlier call of `generate` has read is not trusted."""
    engine = engine_of(session, METHODS["adt"], 2)
    for _ in range(2):
        assert codes(engine, JOBS[:3]) == {job.id: alone[job.id] for job in JOBS[:3]}
    assert reads == ["prompt", "read"] * 2


def test_guidance_rows_in_turn(session, alone) -> None:
    target, method = SequentialGuidance(session.target), METHODS["eagle recall"]
    engine = build_engine(target, session.drafter, WARM, method, 3)
    assert codes(engine, JOBS) == alone


def test_caches_of_target_and_drafter(session) -> None:
    """Keys, values, padding, positions: those of a shared prompt are those of one that was read."""
    shared, own = (engine_of(session, METHODS["small eagle2"], 3) for _ in range(2))
    for engine, texts in ((shared, ["a cat"] * 3), (own, ["a cat", "a red cat", "a cat"])):
        jobs = [Job(str(i), text, 50 + i) for i, text in enumerate(texts)]
        engine._open(jobs)
        assert engine.images.admit(iter(jobs))
    for one, other in (
        (shared.images.cache, own.images.cache),
        (shared.speculation.drafter.cache, own.speculation.drafter.cache),
    ):
        length = shared.images.states[0].length - 1  # the head reads one token less
        for image in (0, 2):
            a, b = one.rows(image), other.rows(image)
            for ours, theirs in zip(one.memory, other.memory, strict=True):
                assert torch.equal(ours[:, a, :, :length], theirs[:, b, :, :length])
                assert ours[:, a, :, :length].abs().sum() > 0
            assert torch.equal(one.padding[a, :length], other.padding[b, :length])
            assert torch.equal(one.origins[a], other.origins[b])
