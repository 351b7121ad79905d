"""A method's speed-up over plain decoding, its interval, and why it may be wrong.

A ratio is formed from two measurements next to each other: the same image, in the same repeat. The
speed-up is the median of such ratios, so a few measurements during a load spike do not move it. On
a CPU the same is computed from process CPU time, which does not run while others have the
processor.
"""

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import Any

import numpy as np

from eval.metrics.paired import Estimate
from runs.measure import BUSY, Measurement, busy_share

ERROR = 0.05  # of an interval: 1 - 95 %
LEAST_VALUES = 6  # with fewer, not even least and greatest enclose the median in 95 % of cases
# Limits beyond which a speed-up is doubted.
DISAGREEMENT = 0.2  # by how much wall time's speed-up may differ from CPU time's
SPREAD = 1.25  # how many times larger the speed-up of one repeat may be than that of another

_AGAIN = "measure again on an idle machine"


def speed_figures(
    repeats: Sequence[Measurement], baseline: Sequence[Measurement], on_cpu: bool
) -> dict[str, Any]:
    """Return a row's figures against plain decoding.

    `speedup`, `speedup_low`, `speedup_high`: the median and its 95 % interval, whose ends are None
    where fewer than six ratios were measured. `speedup_cpu`: the same median from CPU time, None on
    a GPU. `doubts`: why the figures may be wrong, one sentence each.

    Args:
        repeats, baseline: the measurements of the method and of plain decoding, by repeat.
        on_cpu: whether the networks run on the CPU, so that CPU time says what they cost.
    """
    walls = _ratios(_image_seconds(baseline), _image_seconds(repeats))
    processor = None
    if on_cpu:
        processor = float(np.median(_ratios(_cpu_seconds(baseline), _cpu_seconds(repeats))))
    speedup = median_interval(walls)
    doubts = [
        exceeds_tau(speedup.value, repeats[0].tau),
        _disagree(speedup.value, processor),
        _spread(repeats, baseline),
        _waited(repeats, baseline) if on_cpu else None,
    ]
    return {
        "speedup": speedup.value,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "speedup_cpu": processor,
        "doubts": [text for text in doubts if text is not None],
    }


def exceeds_tau(speedup: float, tau: float) -> str | None:
    """Return a warning where a speed-up over plain decoding is larger than decoding can make it.

    A round decides tau tokens on average, and its verification takes at least as long as the
    forward pass of one token. What lies above tau comes from a machine whose speed changed.
    """
    if speedup <= tau:
        return None
    return (
        f"a speed-up of {speedup:.2f} exceeds tau {tau:.2f}, though a verification costs at least "
        "one plain forward pass: the timing is noise, measure again on an idle machine"
    )


def median_interval(values: Sequence[float]) -> Estimate:
    """Return the median and two of the values that enclose the true one in 95 % of cases.

    The interval of the sign test: it assumes nothing of the distribution, and a few values, however
    far off, do not widen it. Fewer than six values have none.
    """
    ordered, count = sorted(values), len(values)
    # Leaving out `cut` values at each end errs where at most `cut` of them lie on one side.
    tails = np.cumsum([2 * comb(count, below) / 2**count for below in range(count)])
    cut = int((tails <= ERROR).sum()) - 1
    if cut < 0:
        return Estimate(median(ordered), None, None)
    return Estimate(median(ordered), ordered[cut], ordered[count - 1 - cut])


def _ratios(plain: np.ndarray, drafted: np.ndarray) -> list[float]:
    """(repeats, images) seconds of both -> the ratios that a median is taken of.

    One per image, the median of its repeats, since repeats of an image are alike; with fewer than
    six images every repeat of every image, which says nothing about other images.
    """
    ratios = plain / drafted
    few = ratios.shape[1] < LEAST_VALUES
    return (ratios.ravel() if few else np.median(ratios, axis=0)).tolist()


def _image_seconds(repeats: Sequence[Measurement]) -> np.ndarray:
    """Return wall seconds, (repeats, images)."""
    return np.array([[image.seconds for image in one.images] for one in repeats])


def _cpu_seconds(repeats: Sequence[Measurement]) -> np.ndarray:
    """Return CPU seconds of all threads, (repeats, turns); a turn is one image or one batch."""
    return np.array([one.cpu_seconds for one in repeats])


def _disagree(wall: float, processor: float | None) -> str | None:
    if processor is None or abs(wall / processor - 1) <= DISAGREEMENT:
        return None
    return (
        f"wall time gives a speed-up of {wall:.2f}, CPU time {processor:.2f}, more than "
        f"{DISAGREEMENT:.0%} apart: other work ran at the same time, or the two methods keep "
        f"different numbers of threads busy; {_AGAIN}"
    )


def _spread(repeats: Sequence[Measurement], baseline: Sequence[Measurement]) -> str | None:
    """Compare the repeats by the seconds of all their images: there a single spike shows."""
    speedups = [
        plain.seconds_per_image / drafted.seconds_per_image
        for drafted, plain in zip(repeats, baseline, strict=True)
    ]
    if max(speedups) <= SPREAD * min(speedups):
        return None
    return (
        f"its repeats give speed-ups from {min(speedups):.2f} to {max(speedups):.2f}, more than a "
        f"factor of {SPREAD:g} apart: the machine's speed changed; {_AGAIN}"
    )


def _waited(repeats: Sequence[Measurement], baseline: Sequence[Measurement]) -> str | None:
    """Doubt figures of a process that had to wait: on a CPU it always has something to compute."""
    share = min(busy_share(repeats), busy_share(baseline))
    if share >= BUSY:
        return None
    return (
        f"the process ran for only {share:.0%} of the time, where an idle machine gives at least "
        f"{BUSY:.0%}: it waited for other work; {_AGAIN}"
    )
