"""Figures over images, and how far other images might move them.

Intervals hold in 95 % of cases. Most are bootstrap intervals (Efron 1979).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import comb, isclose, sqrt
from statistics import median
from typing import Any

import numpy as np

# what can be one figure per image
Values = Sequence[float] | np.ndarray
Share = tuple[float, float]  # an image's hits, and how many it could have
LEAST_IMAGES = 8  # for a bootstrap interval: with fewer it is far too narrow
OVER_IMAGES = "95 %, bootstrap over images"
JACKKNIFE = "95 %, jackknife over 10 groups of images, reference fixed"
_WILSON = "95 %, Wilson, over images"
_GROUPS = 10
_DRAWS = 2**20  # images that are drawn at once: bounds the memory
# 97.5 % quantiles of the normal distribution, and of t with 9 degrees of freedom.
_NORMAL, _STUDENT = 1.96, 2.262


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its 95 % interval, None where there is none."""

    value: float
    low: float | None
    high: float | None

    def words(self, shown: Callable[[float], str] = "{:.2f}".format) -> str:
        """Return the figure, and its interval in brackets if it has one."""
        if self.low is None or self.high is None:
            return shown(self.value)
        return f"{shown(self.value)} [{shown(self.low)}, {shown(self.high)}]"


def estimate(
    figure: Callable[[np.ndarray], np.ndarray], images: int, samples: int = 4000
) -> Estimate:
    """Return a figure with its interval, by resampling the images with replacement.

    Samples in which the figure is not defined (NaN) are left out.

    figure: takes how often each image counts, (..., images), and returns the figures, (...).
    """
    # A fixed seed, so that the same images always give the same interval.
    value, random = float(figure(np.ones(images))), np.random.default_rng(0)
    if images < LEAST_IMAGES:
        return Estimate(value, None, None)
    drawn, most = list[np.ndarray](), max(1, _DRAWS // images)
    for first in range(0, samples, most):
        count = min(most, samples - first)
        places = random.integers(images, size=(count, images)) + images * np.arange(count)[:, None]
        counts = np.bincount(places.ravel(), minlength=places.size).reshape(places.shape)
        drawn.append(figure(counts))
    return Estimate(value, *np.nanquantile(np.concatenate(drawn), (0.025, 0.975)).tolist())


def paired_difference(ours: Sequence[Share], theirs: Sequence[Share]) -> Estimate:
    """Return sum(hits) / sum(totals) of one method minus that of another, over the same images.

    Where an image is hit or not, the interval is Tango's. Else it is the bootstrap's, with the two
    pairs of an image drawn together, or none where resampled images have no spread.

    ours, theirs: (hits, total) of each image.
    """
    one, other = (np.array(shares, dtype=float) for shares in (ours, theirs))  # (images, 2) each
    if _once(one) and _once(other):
        change = one[:, 0] - other[:, 0]
        gained, lost = int((change > 0).sum()), int((change < 0).sum())
        return Estimate((gained - lost) / len(one), *tango(gained, lost, len(one)))

    def difference(counts: np.ndarray) -> np.ndarray:
        hits, theirs = counts @ one, counts @ other  # (..., 2)
        return hits[..., 0] / hits[..., 1] - theirs[..., 0] / theirs[..., 1]

    return _spread(estimate(difference, len(one)))


def _spread(found: Estimate) -> Estimate:
    """Return the estimate, without an interval of width 0: other images might well differ."""
    low, high = found.low, found.high
    spread = low is not None and high is not None and not isclose(low, high, abs_tol=1e-12)
    return found if spread else Estimate(found.value, None, None)


def paired_ratio(above: Values, below: Values, samples: int = 4000) -> Estimate:
    """Return sum(above) / sum(below); the two figures of an image are drawn together.

    The interval says how far other images might move the ratio, not how far another hour of the
    same machine might.
    """
    over, under = np.array(above, dtype=float), np.array(below, dtype=float)
    return estimate(lambda counts: (counts @ over) / (counts @ under), len(over), samples)


def median_interval(values: Sequence[float]) -> Estimate:
    """Return the median and two of the values that enclose the true one in 95 % of cases.

    The interval of the sign test: it assumes nothing of the distribution, and a few values, however
    far off, do not widen it. Fewer than six values have none.
    """
    ordered, count = sorted(values), len(values)
    # Leaving out `cut` values at each end errs where at most `cut` of them lie on one side.
    tails = np.cumsum([2 * comb(count, below) / 2**count for below in range(count)])
    cut = int((tails <= 0.05).sum()) - 1
    if cut < 0:
        return Estimate(median(ordered), None, None)
    return Estimate(median(ordered), ordered[cut], ordered[count - 1 - cut])


def mean_interval(values: Values) -> dict[str, Any]:
    """Return the value, ends and name of the interval of a mean over images.

    The values are no shares, even where all are 0 or 1: the interval is the bootstrap's, or none
    for fewer than eight images and where all are equal.
    """
    ones = [1.0] * len(values)
    return _over_images(_spread(paired_ratio(values, ones)), values, ones)


def share_interval(hits: Values, totals: Values) -> dict[str, Any]:
    """Return the same of sum(hits) / sum(totals), and the pairs of each image as `shares`.

    Where an image is hit or not (totals of 1), the interval is Wilson's (1927). So it is for shares
    of 0 and 1, where resampled images have no spread. Other figures have a bootstrap interval, or
    none for fewer than eight images.
    """
    ratio = paired_ratio(hits, totals)
    got, most = np.asarray(hits, dtype=float), np.asarray(totals, dtype=float)
    figures = _over_images(ratio, got, most)
    if _once(np.stack([got, most], axis=1)) or (got == 0).all() or (got == most).all():
        low, high = wilson(ratio.value, len(got))
        return figures | {"low": low, "high": high, "interval": _WILSON}
    return figures


def _over_images(found: Estimate, hits: Values, totals: Values) -> dict[str, Any]:
    name = None if found.low is None else OVER_IMAGES
    shares = tuple((float(hit), float(total)) for hit, total in zip(hits, totals, strict=True))
    return asdict(found) | {"interval": name, "shares": shares}


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the ends of the 95 % score interval of a share of `count` images."""
    z = _NORMAL**2 / count
    middle, half = share + z / 2, (z * share * (1 - share) + z**2 / 4) ** 0.5
    return (middle - half) / (1 + z), (middle + half) / (1 + z)


def tango(gained: int, lost: int, count: int) -> tuple[float, float]:
    """Return the ends of the 95 % score interval of a difference of paired shares (Tango 1998).

    Statistics in Medicine 17, 891-908. gained, lost: of `count` images, those that only the first
    method hits, and those that only the second does; the share of images that both hit is no part
    of it.
    """

    def upper(gained: int, lost: int) -> float:
        inside, outside = (gained - lost) / count, 1.0
        for _ in range(50):  # halvings, below the last bit
            tried = (inside + outside) / 2
            # the likeliest share of lost images, if the difference is this one
            slope = (2 * count - gained + lost) * tried - gained - lost
            root = sqrt(slope**2 + 8 * count * lost * tried * (1 - tried))
            share = (root - slope) / (4 * count)
            variance = count * (2 * share + tried * (1 - tried))
            if (gained - lost - count * tried) ** 2 < _NORMAL**2 * variance:
                inside = tried
            else:
                outside = tried
        return inside

    return -upper(lost, gained), upper(gained, lost)


def _once(shares: np.ndarray) -> bool:
    """Return whether an image is hit or not; shares: (hits, total) of each."""
    return bool((shares[:, 1] == 1).all() and np.isin(shares[:, 0], (0, 1)).all())


def jackknife(count: int, without: Callable[[np.ndarray], float]) -> dict[str, Any]:
    """Return value and interval of a figure for which the bootstrap is biased.

    Images that are drawn twice narrow a covariance. So every group of images is left out once
    (delete-a-group jackknife; Kott 2001): value +- 2.262 standard errors, from the t distribution
    with 9 degrees of freedom. Fewer than 20 images have no interval.

    without: returns the figure without the images at these indices.
    """
    value = without(np.array([], dtype=int))  # np.delete refuses an empty array of floats
    if count < 2 * _GROUPS:
        return {"value": value}
    groups = np.array_split(np.random.default_rng(0).permutation(count), _GROUPS)
    figures = np.array([without(group) for group in groups])
    # var() divides by the groups, so this is the jackknife's (g - 1) / g times the sum.
    half = _STUDENT * float(np.sqrt((_GROUPS - 1) * figures.var()))
    return {"value": value, "low": value - half, "high": value + half, "interval": JACKKNIFE}
