"""From loaded weights to images: the one way that commands and Python take.

`generate_images` and `adt_tree.Pipeline` both draw here, so the same seed gives the same tokens.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from configs.fields import Flag, mismatch
from decoding.device import current
from decoding.engine import StepStats, Watcher
from decoding.images import FinishedImage, Job
from decoding.seeds import image_seed
from models.target import TargetModel
from runs.prompts import PromptItem
from runs.session import Session
from support.stops import stops
from support.wording import first_of


@dataclass(frozen=True)
class Drawn:
    """A finished image with its pixels, and the seconds they took."""

    image: FinishedImage
    pixels: np.ndarray  # (height, width, 3), uint8
    seconds_decode: float
    cpu_seconds: float  # of all threads, the image's share of its rounds
    stopped_seconds: float  # likewise, of rounds in which the process was stopped for a while
    pictured: bool  # whether the pixels are a picture, not only tokens


def image_jobs(items: Iterable[PromptItem], seed: int) -> list[Job]:
    """Return one job per image, with the image's own seed. seed: the run's base seed."""
    return [
        Job(item.id, item.prompt, image_seed(seed, item.prompt, item.occurrence, item.sample))
        for item in items
    ]


def draw(
    session: Session,
    jobs: Sequence[Job],
    watcher: Watcher | None = None,
    joining: Iterable[Job | None] = (),
) -> Iterator[StepStats[Drawn]]:
    """Draw these images by the session's method; the iterator yields after every round.

    The engine is opened and the prompts are checked at once, the first round runs when the iterator
    is asked for it.

    watcher: sees every round's trees. joining: as of `Engine.generate`; their prompts are checked.
    """
    engine = session.open_engine()
    check_lengths(session.target, jobs)
    if watcher is not None:
        engine.watcher = watcher
    return _steps(session.target, engine.generate(jobs, joining))


def _steps(
    target: TargetModel, steps: Iterator[StepStats[FinishedImage]]
) -> Iterator[StepStats[Drawn]]:
    # by image: CPU seconds, and seconds of rounds in which the process was stopped
    spent: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    while True:
        stopped, began, before = stops(), time.perf_counter(), time.process_time()
        if (step := next(steps, None)) is None:
            return
        count = max(len(step.rounds), 1)
        share = (time.process_time() - before) / count
        pause = (time.perf_counter() - began) / count if stops() > stopped else 0.0
        for stats in step.rounds:
            cpu, paused = spent[stats.id]
            spent[stats.id] = cpu + share, paused + pause
        finished = (_drawn(target, image, *spent.pop(image.job.id)) for image in step.finished)
        yield StepStats(step.rounds, tuple(finished))


def _drawn(target: TargetModel, image: FinishedImage, cpu: float, stopped: float) -> Drawn:
    started = time.perf_counter()
    job = image.job
    with current(target.device):
        pixels = np.asarray(target.picture(image.codes, job.prompt, job.seed))
    seconds = time.perf_counter() - started
    return Drawn(image, pixels, seconds, cpu, stopped, target.pictured)


def check_lengths(target: TargetModel, items: Sequence[PromptItem | Job]) -> None:
    """Raise a SettingsError, before the first image, for prompts that the model cannot read."""
    faults = []
    for prompt, name in {item.prompt: item.id for item in reversed(items)}.items():
        try:
            target.length(prompt)
        except ValueError as error:
            faults.append(f"image {name}: {error}")
    if faults:
        got = f"{len(faults)} that the model cannot take: {first_of(faults[::-1])}"
        raise mismatch(
            Flag("prompt"), got, "shorter or other prompts", "--slice leaves prompts out."
        )
