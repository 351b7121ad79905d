"""Traced rounds have their own prices, and trees of their sizes are replayed."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from configs.fields import SettingsError
from configs.methods import MethodSettings
from decoding.images import Job
from scripts.gpu.traces import RecordedTrees, TracedRun, read_trace


def traced(method: MethodSettings, *images: list[tuple[int, int]]) -> TracedRun:
    """Return a run whose rounds draft trees of these depths and widths and accept nothing."""
    return TracedRun("run", method, {
        str(number): [{"drafted_depth": d, "width": k, "accepted": 0} for d, k in rounds]
        for number, rounds in enumerate(images)
    })  # fmt: skip


def kinds(run: TracedRun, batch: int) -> dict[tuple[int, int, bool], int]:
    """Return how many rounds there are by depth, replayed width and masks."""
    return {(k.depth, k.method.width, k.masked): n for k, n in run.rounds(batch).items()}


def test_rounds_are_replayed_at_their_own_depth() -> None:
    adt = MethodSettings("adt", nodes=58)
    most = adt.own.k_max
    run = traced(adt, [(3, most), (2, most - 1), (0, most)], [(1, most), (3, most), (0, most)])
    alone = {(3, most, False): 2, (2, most, True): 1, (1, most, False): 1, (0, most, False): 2}
    assert kinds(run, 1) == alone
    assert kinds(run, 2) == {(3, most, True): 2, (0, most, False): 1}, "the deepest decides for all"
    assert (run.plain_rounds(1), run.plain_rounds(2)) == (6, 3)


def test_a_finished_image_makes_room_for_the_next() -> None:
    eagle2 = MethodSettings("eagle2", depth=3, width=4, nodes=9)
    run = traced(eagle2, [(3, 4)], [(2, 4)] * 3, [(3, 4)])
    assert kinds(run, 2) == {(3, 4, True): 2, (2, 4, False): 1}


def test_recorded_sizes_are_replayed_whatever_is_accepted(session) -> None:
    run = traced(MethodSettings("eagle2"), [(3, 4), (1, 2), (0, 4)], [(2, 3)])
    engine = session.open_engine(MethodSettings("adt", nodes=9), images=2)
    policy = RecordedTrees(run, engine.speculation.policy.largest)
    engine.speculation = replace(engine.speculation, policy=policy)
    jobs = [Job(str(image), "word", image) for image in range(2)]
    lines = [line for step in islice(engine.generate(jobs), 3) for line in step.rounds]
    sizes = [(line.id, line.drafted_depth, line.width) for line in lines]
    assert sizes == [("0", 3, 4), ("1", 2, 3), ("0", 1, 2), ("1", 2, 3), ("0", 3, 4), ("1", 2, 3)]


def test_traces_without_a_price_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no trace\.jsonl"):
        read_trace(str(tmp_path))
    manifest = {"settings": {"method": "jacobi"}, "identity": {}, "earlier": []}
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    (tmp_path / "trace.jsonl").write_text("")
    with pytest.raises(SettingsError, match="jacobi"):
        read_trace(str(tmp_path))
