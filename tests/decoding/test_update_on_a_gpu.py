"""The loss of an update on a GPU that is not there, as rounds are in `test_round_on_a_gpu`.

A wait in it would keep the host from the rounds that it should run beside.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import small_settings
from test_learn import METHODS, drawn, lessons_of
from test_round_on_a_gpu import GPU, fake_gpu, move  # noqa: F401
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from decoding.drafter import Decided
from drafters.learn import OnlineLessons
from drafters.training import losses
from models.base import PromptRows
from runs.session import Session, open_session

pytestmark = pytest.mark.usefixtures("plain_blocks")


@pytest.fixture
def begun(checkpoint) -> tuple[Session, OnlineLessons]:
    """Lessons on what a run of a few images has noted."""
    session = open_session(replace(small_settings(checkpoint), compile="off"))
    return session, lessons_of(session, drawn(session, METHODS["eagle2"])[1])


@pytest.fixture
def on_gpu(begun, request) -> FakeTensorMode:
    """The fake GPU, which is there once the images are drawn."""
    return request.getfixturevalue("fake_gpu")


def moved(values: Tensor) -> Tensor:
    return torch.empty(values.shape, dtype=values.dtype, device=GPU)


@pytest.mark.parametrize("kind", ["shallow", "deep"])
def test_it_asks_the_device_once(kind, begun, on_gpu, monkeypatch) -> None:
    """Whether prompts are padded, which decides how much memory a mask takes."""
    session, lessons = begun
    asked: list[Tensor] = []
    monkeypatch.setattr(losses, "bool", lambda value: not asked.append(value), raising=False)
    rows, loss = lessons.rows([0, 1, 2], [0, 1, 0]), getattr(lessons, kind)
    with on_gpu:
        move(session.target.transformer)
        move(lessons.head)
        lessons.head.requires_grad_(True)
        parts = {name: moved(getattr(rows, name)) for name in ("ids", "starts", "origins")}
        rows = replace(rows, features=moved(rows.features).float(), **parts)
        levels = replace(
            loss.levels,
            slots=moved(loss.levels.slots),
            places=tuple(map(moved, loss.levels.places)),
        )
        total, found = replace(loss, levels=levels)(lessons.head, rows, None)
    assert total.device == found.device == GPU and len(found) == len(levels.places)
    assert [value.device for value in asked] == [GPU]


def test_notes_stay_on_the_device(begun, on_gpu) -> None:
    """To keep an image is no wait: nothing of it is read."""
    notes = begun[1].rows
    with on_gpu, torch.inference_mode():
        prompt = PromptRows(
            *(torch.zeros(*n, dtype=torch.long, device=GPU) for n in ((2, 5), (2,)))
        )
        features, codes = (torch.zeros(*n, device=GPU) for n in ((1, 2, notes.wanted, 8), (1, 99)))
        notes.open(1)
        notes.start(0, prompt, features[0, :, :5], codes[0, :1].long())
        notes.add(Decided(features, codes.long(), [notes.wanted]))
    kept = notes.rows[-1]
    assert notes.pages == [None] and kept.prompt == 5
    for name in ("ids", "features", "starts", "origins"):
        assert getattr(kept, name).device == GPU and not getattr(kept, name).is_inference()
