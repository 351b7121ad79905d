"""Timed decoding: one method over some images, and where its time went."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from configs.methods import MethodSettings
from decoding.engine import Engine
from decoding.flight import FinishedImage, Job

BASELINE = MethodSettings(method="ar")


@dataclass(frozen=True)
class Measurement:
    """One method over some prompts: its images, and seconds and calls by part of the round."""

    images: list[FinishedImage]
    seconds: dict[str, float]
    calls: dict[str, int]

    @property
    def seconds_per_image(self) -> float:
        return sum(image.seconds for image in self.images) / len(self.images)

    @property
    def tau(self) -> float:
        """Mean tokens per round over all images, the bonus token included, the prefill's not."""
        rounds = sum(image.target_forwards - 1 for image in self.images)
        return sum(len(image.codes) - 1 for image in self.images) / rounds

    def mean(self, name: str) -> float:
        """Return the mean of a figure over the images."""
        return sum(getattr(image, name) for image in self.images) / len(self.images)

    def milliseconds(self, *names: str) -> float | None:
        """Return the mean milliseconds of a forward pass timed in these parts; None without one."""
        calls = self.calls.get(names[0], 0)
        return 1000 * sum(self.seconds[name] for name in names) / calls if calls else None

    @property
    def profile(self) -> dict[str, float]:
        """Milliseconds per round by part.

        `draft` contains draft_forward and draft_head, `verify` contains target_forward.
        """
        rounds = sum(image.target_forwards - 1 for image in self.images)
        return {name: 1000 * seconds / rounds for name, seconds in sorted(self.seconds.items())}

    @property
    def overhead_share(self) -> float:
        """Share of the rounds' time outside the networks of target and drafter."""
        networks = sum(
            self.seconds.get(name, 0.0)
            for name in ("target_forward", "draft_forward", "draft_head")
        )
        return 1 - networks / self.seconds["round"]


def measure(engine: Engine, jobs: list[Job]) -> Measurement:
    """Decode all jobs once; the images come back in the order of the jobs."""
    images = {image.job: image for step in engine.generate(jobs) for image in step.finished}
    return Measurement(
        [images[job] for job in jobs], dict(engine.watch.seconds), dict(engine.watch.calls)
    )


def joined(runs: Sequence[Measurement]) -> Measurement:
    """Return measurements over different prompts as one."""
    images = [image for run in runs for image in run.images]
    seconds, calls = (Counter() for _ in range(2))
    for run in runs:
        seconds.update(run.seconds)
        calls.update(run.calls)
    return Measurement(images, dict(seconds), dict(calls))
