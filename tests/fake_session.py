"""An engine without a model, in numpy: for tests of what happens around the engine."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from stand_ins import empty_checkpoint

from configs.model import EngineSettings
from configs.schema import RunSettings
from decoding.images import Job
from support.json_lines import read_lines

TOKENS, PER_ROUND = 16, 4
MEASURES = {"target_forwards": 5, "tau": 4.0, "mean_nodes": 12.0}
MEASURES |= {"mean_drafted_depth": 6.0, "mean_verified_depth": 5.0}
MEASURES |= {"seconds": 0.5, "seconds_prefill": 0.1, "seconds_draft": 0.2, "seconds_verify": 0.2}
ROUND = {
    "drafted_depth": 6,
    "verified_depth": 5,
    "width": 4,
    "nodes": 12,
    "accepted": PER_ROUND - 1,
    "top1": (0.5,) * PER_ROUND,
}


def fake_codes(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1024, TOKENS)


def fake_pixels(codes: np.ndarray) -> np.ndarray:
    """(images, tokens) -> uint8 (images, 4, 4, 3)."""
    return (codes.reshape(-1, 4, 4, 1) // 4).astype(np.uint8).repeat(3, axis=-1)


def fake_length(text: str) -> int:
    if len(text) > 100:
        raise ValueError(f"{len(text)} letters are too many")
    return len(text)


@dataclass
class FakeEngine:
    """Two images at a time, four tokens per round; raises after `broken_after` rounds."""

    pace: float = 0.0  # seconds per round
    broken_after: int | None = None
    rounds: int = 0
    drawn: list[str] = field(default_factory=list)

    def generate(self, jobs: Iterable[Job], joining: Iterable[Job | None] = ()) -> Iterator[Any]:
        queue, active = chain(jobs, joining), {}
        while True:
            while len(active) < 2 and (job := next(queue, None)) is not None:
                self.drawn.append(job.id)
                active[job] = 0
            if not active:
                return
            yield self._step(active)

    def _step(self, active: dict[Job, int]) -> Any:
        time.sleep(self.pace)
        self.rounds += 1
        if self.rounds == self.broken_after:
            raise KeyboardInterrupt
        rounds, finished = [], []
        for job, position in list(active.items()):
            active[job] += PER_ROUND
            place = {"id": job.id, "round": position // PER_ROUND, "position": position}
            rounds.append(SimpleNamespace(**place, **ROUND))
            if active[job] >= TOKENS:
                del active[job]
                finished.append(SimpleNamespace(job=job, codes=fake_codes(job.seed), **MEASURES))
        return SimpleNamespace(rounds=tuple(rounds), finished=tuple(finished))


@dataclass
class FakeSession:
    """The part of a session that generation uses."""

    engine: FakeEngine
    target = SimpleNamespace(pictured=True, length=fake_length, device=torch.device("cpu"))
    target.grid = SimpleNamespace(tokens=TOKENS)
    target.picture = lambda codes, text, seed: fake_pixels(codes[None])[0]

    def open_engine(self) -> FakeEngine:
        return self.engine

    def hardware(self) -> dict[str, object]:
        return {"device": "fake"}


def fake_opener(engine: FakeEngine) -> Callable[[EngineSettings], FakeSession]:
    return lambda settings: FakeSession(engine)


def fake_run(place: Path, **flags: object) -> RunSettings:
    """The settings of a run into the folder `out` of a place, of a model with empty files."""
    folder = empty_checkpoint(place / "model")
    usual = {"prompt": "a cat", "model_path": str(folder), "output_dir": str(place / "out")}
    return RunSettings.of(usual | flags)


def nine_names(place: Path) -> str:
    """A file of nine prompts, of which two are there twice."""
    path = place / "names.txt"
    path.write_text("".join(f"name {n % 7}\n" for n in range(9)))
    return str(path)


def content(out: Path) -> tuple[dict[str, dict], list[str], dict[str, bytes]]:
    """Records without times, once each, rounds in any order, and images of a run's folder."""
    lines = read_lines(out / "records.jsonl")
    assert len({line["id"] for line in lines}) == len(lines)
    records = {line["id"]: line | {"seconds_decode": 0, "cpu_seconds": 0} for line in lines}
    trace = sorted(map(str, read_lines(out / "trace.jsonl")))
    return records, trace, {path.name: path.read_bytes() for path in (out / "img").iterdir()}
