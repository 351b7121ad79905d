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
from support.wording import first_of


@dataclass(frozen=True)
class Drawn:
    """A finished image with its pixels, and the seconds they took."""

    image: FinishedImage
    pixels: np.ndarray  # (height, width, 3), uint8
    seconds_decode: float
    cpu_seconds: float  # of all threads, the image's share of its rounds
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
    spent: dict[str, float] = defaultdict(float)  # CPU seconds by image
    while True:
        before = time.process_time()
        if (step := next(steps, None)) is None:
            return
        share = (time.process_time() - before) / max(len(step.rounds), 1)
        for stats in step.rounds:
            spent[stats.id] += share
        finished = (_drawn(target, image, spent.pop(image.job.id, 0.0)) for image in step.finished)
        yield StepStats(step.rounds, tuple(finished))


def _drawn(target: TargetModel, image: FinishedImage, cpu_seconds: float) -> Drawn:
    started = time.perf_counter()
    job = image.job
    with current(target.device):
        pixels = np.asarray(target.picture(image.codes, job.prompt, job.seed))
    return Drawn(image, pixels, time.perf_counter() - started, cpu_seconds, target.pictured)


def check_lengths(target: TargetModel, items: Sequence[PromptItem | Job]) -> None:
    """Raise a SettingsError, before the first image, if prompts are too long for the model."""
    faults = []
    for prompt, name in {item.prompt: item.id for item in reversed(items)}.items():
        try:
            target.length(prompt)
        except ValueError as error:
            faults.append(f"image {name}: {error}")
    if faults:
        got = f"{len(faults)} that the model cannot take: {first_of(faults[::-1])}"
        raise mismatch(Flag("prompt"), got, "shorter prompts", "--slice leaves prompts out.")
