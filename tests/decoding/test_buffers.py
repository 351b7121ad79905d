"""The state of a recorded round stays where it is: a replay reads and writes the same memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small import open_lumina
from test_recorded_rounds import METHODS, WARM, named
from test_round_on_a_gpu import Directly
from torch import Tensor

from configs.schema import MethodSettings
from decoding.engine import Engine
from decoding.flight import Job
from runs.methods import build_engine
from runs.session import Session

ALIKE = [Job(str(seed), "a cat", seed) for seed in range(4)]  # no prompt needs more room
OURS = ("decoding", "drafters")


def addresses(engine: Engine) -> dict[str, int]:
    """Where the tensors are that the batch and the drafter hold, by the names that lead there."""
    roots = {"batch": engine.batch}
    if engine.speculation:
        roots["drafter"] = engine.speculation.drafter
    return dict(_tensors(roots, "", set()))


def _tensors(held: dict, path: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    for name, value in held.items():
        where = f"{path}.{name}"
        if isinstance(value, Tensor):
            yield where, value.data_ptr()
        elif isinstance(value, (tuple, list)):
            yield from _tensors(dict(enumerate(value)), where, seen)
        elif isinstance(value, dict):
            yield from _tensors(value, where, seen)
        elif type(value).__module__.split(".")[0] in OURS and id(value) not in seen:
            seen.add(id(value))
            yield from _tensors(getattr(value, "__dict__", {}), where, seen)


def check(session: Session, method: MethodSettings, rounds: int = 2) -> dict[str, int]:
    """Decode some rounds of two images; returns the buffers, which were there before the first."""
    parts = session.target, session.drafter, WARM, method, 2
    engine = build_engine(*parts, recorder=Directly())
    engine._open(ALIKE[:2])
    engine.batch.admit(iter(ALIKE))
    before = addresses(engine)
    for _ in range(rounds):
        engine._step()
        after = addresses(engine)
        assert {name: after[name] for name in before} == before
        assert None not in engine.batch.flights  # the sizes have stayed the same
    return before


@pytest.mark.parametrize("method", METHODS, ids=named)
def test_buffers_stay_where_they_are_over_rounds(method, session) -> None:
    buffers = " ".join(check(session, method))
    assert "cache.memory" in buffers and "noise.table" in buffers
    assert ("drafter" in buffers) == (method.method != "ar")


@pytest.mark.parametrize("method", METHODS[-2:], ids=named)
def test_so_they_do_across_row_ends(method, lumina_folder) -> None:
    check(open_lumina(lumina_folder, "64"), method)
