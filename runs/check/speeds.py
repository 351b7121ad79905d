"""`inspect --speed`: how many images at once; tokens per second of methods by batch size."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

from configs.methods import MethodSettings
from decoding.engine import Engine
from decoding.images import Job
from runs.session import Session

BATCHES = (1, 2, 4, 8, 16, 32)
WARM_UP, TIMED = 2, 16  # rounds: the first ones allocate memory and compile
_PROMPTS = ("a red circle on a plain blue background", "a small yellow star on a grassy background")


@dataclass(frozen=True)
class Speed:
    """One method with so many images at once."""

    method: MethodSettings
    batch: int
    tokens_per_second: float  # of all images together

    @property
    def flags(self) -> str:
        """The flags that ask for what was measured."""
        method = self.method
        window = f" --window {method.window}" if method.method == "jacobi" else ""
        return f"--batch_size {self.batch} --method {method.method}{window}"


def tokens_per_second(engine: Engine, jobs: Sequence[Job]) -> float:
    """Time the first rounds of images, without the prefill."""
    steps = engine.generate(jobs)
    for _ in islice(steps, WARM_UP):
        pass
    started = perf_counter()
    tokens = sum(image.accepted + 1 for step in islice(steps, TIMED) for image in step.rounds)
    return tokens / (perf_counter() - started)


def speeds_by_batch(session: Session, batches: Sequence[int]) -> tuple[Speed, ...]:
    """Return the speed of every batch size and method; `adt` only where a drafter is."""
    jobs = [Job(str(n), _PROMPTS[n % len(_PROMPTS)], n) for n in range(max(batches))]
    names = ("ar", "jacobi") if session.drafter is None else ("ar", "jacobi", "adt")
    cells = [(batch, MethodSettings(name)) for batch in batches for name in names]
    return tuple(
        Speed(
            method,
            batch,
            tokens_per_second(session.open_engine(method, images=batch), jobs[:batch]),
        )
        for batch, method in cells
    )


def best(speeds: Sequence[Speed]) -> Speed:
    return max(speeds, key=lambda speed: speed.tokens_per_second)
