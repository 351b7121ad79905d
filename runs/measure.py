"""Timed decoding: one method over some images, and where its time went."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from configs.methods import MethodSettings
from decoding.engine import Engine
from decoding.images import FinishedImage, Job
from support.progress import plural

Number = TypeVar("Number", int, float)
BASELINE = MethodSettings(method="ar")
AGAIN = "measure again on an idle machine"
LEAST_ROUNDS = 5  # in fewer, a fault of every second round would pass once in 16 times
DISAGREEMENT = 0.2  # by how much wall time's speed-up may differ from CPU time's
BUSY = 0.9  # CPU seconds per second that a process on an idle machine reaches with one thread


@dataclass(frozen=True)
class Measurement:
    """One method over some prompts."""

    images: list[FinishedImage]  # in the order of the jobs
    seconds: dict[str, float]  # by part of the round
    calls: dict[str, int]  # likewise
    # of all threads of the process, for each call of `measure`: one image or batch
    cpu_seconds: tuple[float, ...]
    first_seconds: tuple[float, ...]  # likewise, until its first image was there

    @property
    def seconds_per_image(self) -> float:
        return sum(image.seconds for image in self.images) / len(self.images)

    @property
    def tau(self) -> float:
        """Mean tokens per round over all images, the bonus token included, the prefill's not."""
        tokens, rounds = map(sum, self.tokens_and_rounds)
        return tokens / rounds

    @property
    def tokens_and_rounds(self) -> tuple[list[int], list[int]]:
        """Tokens of every image, and the rounds that decided them; without the prefill's."""
        tokens = [len(image.codes) - 1 for image in self.images]
        return tokens, [image.target_forwards - 1 for image in self.images]

    def mean(self, name: str) -> float:
        return sum(getattr(image, name) for image in self.images) / len(self.images)

    @property
    def inconclusive(self) -> str | None:
        """Why equal images say nothing about a method that drafts; None if they do."""
        return inconclusive((i.target_forwards - 1, i.mean_nodes, i.tau) for i in self.images)

    @property
    def in_parts(self) -> bool:
        """Whether the parts of every round were timed; those of a replayed one are not."""
        return self.calls.get("round") == self.calls.get("target_forward")

    def milliseconds(self, *names: str) -> float | None:
        """Return the mean milliseconds of a forward pass timed in these parts; None without one."""
        calls = self.calls.get(names[0], 0)
        return 1000 * sum(self.seconds[name] for name in names) / calls if calls else None

    @property
    def profile(self) -> dict[str, float]:
        """Milliseconds per round by part; `draft` contains draft_*, `verify` target_forward."""
        rounds = sum(self.tokens_and_rounds[1])
        names = sorted(self.seconds) if self.in_parts else ["round"]
        return {name: 1000 * self.seconds[name] / rounds for name in names}

    @property
    def overhead_share(self) -> float:
        """Share of the rounds' time outside the networks of target and drafter."""
        networks = sum(
            self.seconds.get(name, 0.0)
            for name in ("target_forward", "draft_forward", "draft_head")
        )
        return 1 - networks / self.seconds["round"]


def inconclusive(images: Iterable[tuple[int, float, float]]) -> str | None:
    """Return why equal images say nothing about a method that drafts; None if they do.

    images: the rounds of each, mean draft tokens and tau.
    """
    rounds, drafted, accepted = (
        round(sum(n))
        for n in zip(*((r, r * nodes, r * (tau - 1)) for r, nodes, tau in images), strict=True)
    )
    if not drafted:
        return "no token was drafted"
    if accepted >= drafted:
        return "no draft token was rejected"
    return f"only {plural(rounds, 'round')} were compared" if rounds < LEAST_ROUNDS else None


def measure(
    engine: Engine,
    jobs: list[Job],
    clock: Callable[[], float] = time.process_time,
    seen: Callable[[], None] = lambda: None,  # called after every round
) -> Measurement:
    """Decode all jobs once; the images come back in the order of the jobs."""
    started, began, ends = clock(), time.perf_counter(), list[float]()
    images: dict[Job, FinishedImage] = {}
    for step in engine.generate(jobs):
        images |= {image.job: image for image in step.finished}
        ends += [time.perf_counter() - began] * len(step.finished)
        seen()
    watch, spent = engine.watch, clock() - started
    parts = dict(watch.seconds), dict(watch.calls), (spent,), (ends[0],)
    return Measurement([images[job] for job in jobs], *parts)


def warm_up(engine: Engine, jobs: list[Job], images: int = 1) -> Measurement:
    """Decode the first jobs, so many images, for what an engine does only once; return that.

    On a GPU at least as many as it decodes together: for others it would capture rounds again.
    """
    if engine.target.device.type == "cuda":
        images = max(images, engine.batch)
    return measure(engine, jobs[:images])


def joined(runs: Sequence[Measurement]) -> Measurement:
    """Return measurements over different prompts as one."""
    images = [image for run in runs for image in run.images]
    seconds, calls = _added([run.seconds for run in runs]), _added([run.calls for run in runs])
    spent, first = (
        tuple(one for run in runs for one in getattr(run, name))
        for name in ("cpu_seconds", "first_seconds")
    )
    return Measurement(images, seconds, calls, spent, first)


def _added(parts: Sequence[dict[str, Number]]) -> dict[str, Number]:
    names = dict.fromkeys(chain.from_iterable(parts))
    return {name: sum(part.get(name, 0) for part in parts) for name in names}


def busy_share(runs: Sequence[Measurement]) -> float:
    """Return the CPU seconds per second of some measurements: of one thread, about 1 if idle."""
    seconds = sum(image.seconds for run in runs for image in run.images)
    return sum(spent for run in runs for spent in run.cpu_seconds) / seconds


def exceeds_tau(speedup: float, tau: float) -> str | None:
    """Return a warning where a speed-up over plain decoding is larger than decoding can make it.

    A round decides tau tokens on average, and its verification takes at least as long as the
    forward pass of one token. What lies above tau comes from a machine whose speed changed.
    """
    if speedup <= tau:
        return None
    return (
        f"a speed-up of {speedup:.2f} exceeds tau {tau:.2f}, though a verification costs at least "
        f"one plain forward pass: the timing is noise, {AGAIN}"
    )


def disagreement(wall: float, processor: float) -> str | None:
    """Return a warning where speed-ups by wall time and by CPU time differ."""
    if abs(wall / processor - 1) <= DISAGREEMENT:
        return None
    return (
        f"wall time gives a speed-up of {wall:.2f}, CPU time {processor:.2f}, more than "
        f"{DISAGREEMENT:.0%} apart: other work ran at the same time, or the two methods keep "
        f"different numbers of threads busy; {AGAIN}"
    )


def waited(repeats: Sequence[Measurement], baseline: Sequence[Measurement]) -> str | None:
    """Return a warning if a process had to wait: on a CPU it always has something to compute."""
    return waiting(min(busy_share(repeats), busy_share(baseline)))


def waiting(share: float) -> str | None:
    """Return a warning if a process on a CPU had few CPU seconds per second."""
    if share >= BUSY:
        return None
    return (
        f"the process had the CPU for only {share:.0%} of the time (at least {BUSY:.0%} on an idle "
        f"machine): other programs were running, or it was stopped; {AGAIN}"
    )
