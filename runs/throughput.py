"""How many images at once: tokens per second of a method by batch size.

A finished image's place is taken by the next one in the very next round, so a batch is as full as
it can be until the last images.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from configs.methods import MethodSettings
from decoding.engine import Engine, StepStats
from decoding.images import Job
from runs.session import Session

BATCHES = (1, 2, 4, 8, 16, 32)
WARM_UP, TIMED = 2, 16  # rounds, where not whole images are timed
_PROMPTS = ("a red circle on a plain blue background", "a small yellow star on a grassy background")


@dataclass(frozen=True)
class Speed:
    """One method with so many images at once.

    images: finished. tokens: decided. rounds: of single images. nodes: verified in them, mean.
    seconds: of all together.
    """

    method: MethodSettings
    batch: int
    images: int
    tokens: int
    rounds: int
    nodes: float
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds

    @property
    def tau(self) -> float:
        """Mean tokens per round, the bonus token included."""
        return self.tokens / self.rounds


def measure_speed(
    engine: Engine, jobs: Sequence[Job], method: MethodSettings, rounds: int | None = None
) -> Speed:
    """Decode jobs, as many at once as the engine takes, and time it.

    rounds: only so many, after a warm-up, none of the prefill's time; None: whole images, with it.
    """
    started = time.perf_counter()
    steps = engine.generate(jobs)
    if rounds is not None:
        # the prefill and first rounds allocate memory and compile
        for _ in islice(steps, WARM_UP):
            pass
        started, steps = time.perf_counter(), islice(steps, rounds)
    seen: list[StepStats] = list(steps)
    seconds = time.perf_counter() - started
    records = [record for step in seen for record in step.rounds]
    return Speed(
        method,
        engine.max_images,
        sum(len(step.finished) for step in seen),
        sum(record.accepted + 1 for record in records),
        len(records),
        sum(record.nodes for record in records) / len(records),
        seconds,
    )


def methods_by_batch(
    session: Session, batches: Sequence[int]
) -> Iterator[tuple[int, MethodSettings]]:
    """Yield (batch, method) for every cell of the table; `adt` only where a drafter is."""
    for batch in batches:
        yield batch, MethodSettings("ar")
        yield batch, MethodSettings("jacobi")
        if session.drafter is not None:
            yield batch, MethodSettings("adt")


def speeds_by_batch(session: Session, batches: Sequence[int]) -> tuple[Speed, ...]:
    """Return the speeds of the first rounds of images of simple prompts."""
    jobs = [Job(str(n), _PROMPTS[n % len(_PROMPTS)], n) for n in range(max(batches))]
    cells = methods_by_batch(session, batches)
    return tuple(
        measure_speed(session.open_engine(method, images=batch), jobs[:batch], method, TIMED)
        for batch, method in cells
    )


def best(speeds: Sequence[Speed]) -> Speed:
    """Return the one with most tokens per second."""
    return max(speeds, key=lambda speed: speed.tokens_per_second)


def flags(speed: Speed) -> str:
    """Return the flags that ask for what was measured."""
    method = speed.method
    window = f" --window {method.window}" if method.method == "jacobi" else ""
    return f"--batch_size {speed.batch} --method {method.method}{window}"
