"""A method's speed-up over plain decoding, its interval, and why it may be wrong.

A ratio is formed from two measurements next to each other: the same image, in the same repeat. The
speed-up is the median of such ratios, so a few measurements during a load spike do not move it. In
a batch, an image's seconds are its share of the rounds that it was in, and rounds with few images
left cost nearly as much, so there the seconds of all images are compared. On a CPU the same is
computed from process CPU time, which does not run while others have the processor.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from eval.metrics.intervals import Estimate, median_interval, paired_ratio
from runs.measure import AGAIN, Measurement, disagreement, exceeds_tau, waited

LEAST_VALUES = 6  # with fewer, not even least and greatest enclose the median in 95 % of cases
SPREAD = 1.25  # more times the speed-up of another repeat is doubted


def speed_figures(
    repeats: Sequence[Measurement], baseline: Sequence[Measurement], on_cpu: bool
) -> dict[str, Any]:
    """Return a row's figures against plain decoding.

    `speedup`, `speedup_low`, `speedup_high`: the speed-up and its 95 % interval, whose ends are
    None where too little was measured. `speedup_cpu`: the same from CPU time, None on a GPU.
    `doubts`: why the figures may be wrong, one sentence each.

    on_cpu: whether the networks run on the CPU, so that CPU time says what they cost.
    """
    ratio, processor = speedup(repeats, baseline), None
    if on_cpu:  # seconds of all threads, (repeats, turns); a turn is one image or one batch
        plain, drafted = (np.array([one.cpu_seconds for one in m]) for m in (baseline, repeats))
        processor = _compared(plain, drafted, _one_by_one(repeats)).value
    return {
        "speedup": ratio.value,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "speedup_cpu": processor,
        "doubts": list(_doubts(ratio.value, processor, repeats, baseline)),
    }


def speedup(repeats: Sequence[Measurement], baseline: Sequence[Measurement]) -> Estimate:
    """Return a method's speed-up over plain decoding by wall time."""
    plain, drafted = (
        np.array([[image.seconds for image in one.images] for one in measurements])
        for measurements in (baseline, repeats)
    )
    return _compared(plain, drafted, _one_by_one(repeats))


def _compared(plain: np.ndarray, drafted: np.ndarray, one_by_one: bool) -> Estimate:
    """(repeats, images or turns) seconds of both -> how many times as fast the drafts are."""
    if one_by_one:
        return median_interval(_ratios(plain, drafted))
    return paired_ratio(plain.sum(0), drafted.sum(0))


def _one_by_one(repeats: Sequence[Measurement]) -> bool:
    """Return whether images were decoded one by one, each in a call of its own."""
    return len(repeats[0].cpu_seconds) == len(repeats[0].images)


def _ratios(plain: np.ndarray, drafted: np.ndarray) -> list[float]:
    """(repeats, images) seconds of both -> the ratios that a median is taken of.

    One per image, the median of its repeats, since repeats of an image are alike; with fewer than
    six images every repeat of every image, which says nothing about other images.
    """
    ratios = plain / drafted
    few = ratios.shape[1] < LEAST_VALUES
    return (ratios.ravel() if few else np.median(ratios, axis=0)).tolist()


def _doubts(
    wall: float,
    processor: float | None,
    repeats: Sequence[Measurement],
    baseline: Sequence[Measurement],
) -> Iterator[str]:
    """Yield why a speed-up may be wrong. wall, processor: by wall time, by CPU time."""
    # the same mean of tokens per round as the speed-up is of seconds
    taus = [image.tau for image in repeats[0].images]
    tau = median(taus) if _one_by_one(repeats) else repeats[0].tau
    if noise := exceeds_tau(wall, tau):
        yield noise
    if processor is not None and (apart := disagreement(wall, processor)):
        yield apart
    # by the seconds of all images of a repeat: there a single spike shows
    pairs = zip(baseline, repeats, strict=True)
    by_repeat = [plain.seconds_per_image / drafted.seconds_per_image for plain, drafted in pairs]
    if max(by_repeat) > SPREAD * min(by_repeat):
        yield (
            f"its repeats give speed-ups from {min(by_repeat):.2f} to {max(by_repeat):.2f}, more "
            f"than a factor of {SPREAD:g} apart: the machine's speed changed; {AGAIN}"
        )
    if processor is not None and (late := waited(repeats, baseline)):
        yield late
