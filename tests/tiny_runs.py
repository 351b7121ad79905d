"""Work folders of the tiny model's trainings, and what all of these trainings must do."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from scenes.training.training import TrainingRun
from support.training_state import load_state, save_state


def write_split(
    folder: Path,
    split: str,
    records: Sequence[dict],
    codes: np.ndarray | None = None,
    images: np.ndarray | None = None,
) -> None:
    """Write a split as `scenes.training.images` and `encode` do."""
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / f"captions_{split}.jsonl").write_text(lines)
    if codes is not None:
        np.save(folder / f"codes_{split}.npy", codes.astype(np.uint16))
    if images is not None:
        np.save(folder / f"images_{split}.npy", images)


def seconds_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step of a training take a second by its clock."""
    clock = iter(range(10**6))
    monkeypatch.setattr("scenes.training.training.time.perf_counter", lambda: float(next(clock)))


def updates(run: TrainingRun, count: int) -> list[float]:
    return [run.update(1e-3) for _ in range(count)]


def assert_resumes(open_run: Callable[[], TrainingRun], path: Path) -> TrainingRun:
    """A run that continues from a checkpoint has the losses of the uninterrupted one."""
    whole, first, second = open_run(), open_run(), open_run()
    losses = updates(whole, 4)
    updates(first, 2)
    save_state(path, first.state())
    second.load(load_state(path))
    assert updates(second, 2) == pytest.approx(losses[2:], rel=1e-6)
    return whole
