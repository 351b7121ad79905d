"""Is one method faster than another on the same images? Ratios with paired bootstrap intervals (Efron 1979)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_IMAGES = 8  # for an interval: with fewer it is far too narrow


@dataclass(frozen=True)
class Ratio:
    """A ratio of totals and the ends of its 95 % interval, None for fewer than eight images."""

    value: float
    low: float | None
    high: float | None


def paired_ratio(above: Sequence[float], below: Sequence[float], samples: int = 4000) -> Ratio:
    """sum(above) / sum(below), one pair of figures per image; the interval comes from drawing images anew, in pairs.

    It says how far other images might move the ratio, not how far another hour of the same machine might.

    Raises:
        ValueError: the two have not one figure each per image.
    """
    if len(above) != len(below) or not len(above):
        raise ValueError(f"found {len(above)} and {len(below)} figures; expected one pair per image")
    pairs = np.array([above, below], dtype=float)
    random, count = np.random.default_rng(0), pairs.shape[1]
    drawn = np.stack([pairs[:, random.integers(count, size=count)].sum(-1) for _ in range(samples)], axis=1)
    ends = np.quantile(drawn[0] / drawn[1], (0.025, 0.975)).tolist() if len(above) >= LEAST_IMAGES else (None, None)
    return Ratio(float(pairs[0].sum() / pairs[1].sum()), *ends)
