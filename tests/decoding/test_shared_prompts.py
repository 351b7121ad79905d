"""Images of one prompt share what the target read of it; their tokens are those of images alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from browser import only_in_all
from fakes import codes
from test_engine import METHODS, PLAIN, engine_of

from decoding.cache import KVCache
from decoding.images import Job
from models.guidance import SequentialGuidance
from runs.session import Session

TEXTS = ["a cat"] * 4 + ["two blue dogs on a mat"] * 3 + ["a cat", "a red cat", "a red cat"]
JOBS = [Job(str(number), text, 50 + number) for number, text in enumerate(TEXTS)]
CHANGES = 4  # how often another prompt begins
USED = {"plain": PLAIN} | {
    name: METHODS[name] for name in ("small eagle2", "adt", "jacobi", "block", "eagle recall")
}


@pytest.fixture(scope="module")
def alone(session: Session) -> dict[str, list[int]]:
    """The baseline's codes; every image has an engine of its own, which reads its prompt."""
    return {job.id: codes(engine_of(session, PLAIN, 1), [job])[job.id] for job in JOBS}


@pytest.fixture
def reads(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the calls that read a prompt: tokens or text encoder, target, and the caches'
    rows that begin anew.
    """
    called: list[str] = []
    target = type(session.target)
    for owner, name in ((target, "prompt"), (target, "read"), (KVCache, "prefill")):
        real = getattr(owner, name)

        def counted(self, *arguments, name=name, real=real):
            called.append(name)
            return real(self, *arguments)

        monkeypatch.setattr(owner, name, counted)
    # length counts the tokens of the longest prompt, once per prompt that opens the batch
    monkeypatch.setattr(target, "length", lambda self, text: len(text) + 4)
    return called


@pytest.mark.parametrize("images", [1, pytest.param(2, marks=only_in_all), 3, 8])
@pytest.mark.parametrize("name", USED)
def test_a_prompt_is_read_once_for_its_images(name, images, session, alone, reads) -> None:
    """Also by the drafter, where it keeps a cache."""
    method = USED[name]
    assert codes(engine_of(session, method, images), JOBS) == alone
    caches = 2 if method.drafted else 1
    assert Counter(reads) == {"prompt": CHANGES, "read": CHANGES, "prefill": CHANGES * caches}


def test_every_engine_reads_anew(session, alone, reads) -> None:
    """What an earlier call of `generate` has read is not trusted."""
    engine = engine_of(session)
    for _ in range(2):
        assert codes(engine, JOBS[:3]) == {job.id: alone[job.id] for job in JOBS[:3]}
    assert [name for name in reads if name != "prefill"] == ["prompt", "read"] * 2


def test_guidance_rows_in_turn(session, alone) -> None:
    in_turn = replace(session, target=SequentialGuidance(session.target))
    assert codes(engine_of(in_turn, METHODS["eagle recall"], 3), JOBS) == alone


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
