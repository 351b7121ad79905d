"""`inspect --speed`: what is counted, and that no place of a batch stays empty."""

from __future__ import annotations

from itertools import pairwise

import pytest
from damage import gone, inspected

from configs.schema import MethodSettings
from decoding.images import Job
from runs.check import files, speeds

PLAIN, WINDOW = MethodSettings("ar"), MethodSettings("jacobi", window=3)
JOBS = [Job(str(number), f"word {number}", number) for number in range(9)]


@pytest.mark.parametrize("method", [PLAIN, WINDOW], ids=["ar", "jacobi"])
def test_a_free_place_is_taken_in_the_next_round(method, session) -> None:
    """While images wait, every round has as many as there are places; the next in line come in."""
    steps = list(session.open_engine(method, images=3).generate(JOBS))
    started: list[str] = []
    for before, step in pairwise([None, *steps]):
        ids = [line.id for line in step.rounds]
        gone = 0 if before is None else len(before.finished)
        new = [id for id in ids if id not in started]
        waiting = len(JOBS) - len(started)
        assert len(new) == min(waiting, 3 if before is None else gone)
        started += new
        assert len(ids) == 3 or len(started) == len(JOBS)
    assert started == [job.id for job in JOBS]


def test_the_rounds_after_the_first_are_counted(session, monkeypatch) -> None:
    times = iter((1.0, 5.0))
    monkeypatch.setattr(speeds, "perf_counter", lambda: next(times))
    monkeypatch.setattr(speeds, "TIMED", 3)
    assert speeds.tokens_per_second(session.open_engine(PLAIN, images=2), JOBS[:2]) == 3 * 2 / 4


def test_speeds_are_measured_on_demand(folder, capsys, monkeypatch, tmp_path) -> None:
    """Of the methods that the checkpoint has, at the batch sizes that fit into the memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(speeds, "TIMED", 2)
    monkeypatch.setattr(files, "BATCHES", (1, 2, 4))
    monkeypatch.setattr(files, "_SHARE", 1.0)
    monkeypatch.setattr(files, "free_memory", lambda device: most * 3 // 4)
    _, large = inspected(capsys, folder, "--batch_size=4")
    assert "tokens_per_second" not in large
    most = sum(n for name, n in large["memory"].items() if not name.endswith("weights"))
    code, document = inspected(capsys, folder, "--speed")
    cells, rates = zip(*document["tokens_per_second"], strict=True)
    assert code == 0 and document["recommended"] in cells and min(rates) > 0
    methods = ("ar", "jacobi --window 16", "adt")
    wanted = [f"--batch_size {n} --method {name}" for n in (1, 2) for name in methods]
    assert list(cells) == wanted
    gone("drafter")(folder)
    monkeypatch.setattr(files, "BATCHES", (1,))
    _, document = inspected(capsys, folder, "--speed")
    assert [cell.split()[3] for cell, _ in document["tokens_per_second"]] == ["ar", "jacobi"]
