"""How far a figure might move with other images."""

from collections.abc import Callable, Sequence

import numpy as np

from eval.metrics.paired import paired_ratio

OVER_IMAGES = "95 %, bootstrap over images"
JACKKNIFE = "95 %, jackknife over 10 groups of images, reference fixed"
_WILSON = "95 %, Wilson, over images"
_GROUPS = 10
# 97.5 % quantiles of the normal distribution, and of t with 9 degrees of freedom.
_NORMAL, _STUDENT = 1.96, 2.262


def mean_interval(values: Sequence[float]) -> dict[str, object]:
    """Return the value, ends and name of the interval of a mean over images."""
    return share_interval(values, [1.0] * len(values))


def share_interval(hits: Sequence[float], totals: Sequence[float]) -> dict[str, object]:
    """Return the same of sum(hits) / sum(totals), and the pairs of each image as `shares`.

    Where an image is hit or not (totals of 1), the interval is Wilson's (1927). So it is for shares
    of 0 and 1, where drawing images anew finds no spread. Other figures have a bootstrap interval,
    or none for fewer than eight images.
    """
    ratio = paired_ratio(hits, totals)
    got, most = np.asarray(hits, dtype=float), np.asarray(totals, dtype=float)
    figures = {"value": ratio.value, "shares": tuple(zip(got.tolist(), most.tolist(), strict=True))}
    once = (most == 1).all() and np.isin(got, (0, 1)).all()
    if once or (got == 0).all() or (got == most).all():
        low, high = wilson(ratio.value, len(got))
        return figures | {"low": low, "high": high, "interval": _WILSON}
    name = None if ratio.low is None else OVER_IMAGES
    return figures | {"low": ratio.low, "high": ratio.high, "interval": name}


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the ends of the 95 % score interval of a share of `count` images."""
    z = _NORMAL**2 / count
    middle, half = share + z / 2, (z * share * (1 - share) + z**2 / 4) ** 0.5
    return (middle - half) / (1 + z), (middle + half) / (1 + z)


def jackknife(
    count: int, without: Callable[[np.ndarray], float], value: float
) -> dict[str, object]:
    """Return value and interval of a figure for which the bootstrap is biased.

    Images that are drawn twice narrow a covariance. So every group of images is left out once
    (delete-a-group jackknife; Kott 2001): value +- 2.262 standard errors, from the t distribution
    with 9 degrees of freedom. Fewer than 20 images have no interval.

    Args:
        count: number of images.
        without: returns the figure without the images at these indices.
        value: the figure of all images.
    """
    if count < 2 * _GROUPS:
        return {"value": value}
    groups = np.array_split(np.random.default_rng(0).permutation(count), _GROUPS)
    figures = np.array([without(group) for group in groups])
    error = float(np.sqrt((_GROUPS - 1) / _GROUPS * ((figures - figures.mean()) ** 2).sum()))
    return {
        "value": value,
        "low": value - _STUDENT * error,
        "high": value + _STUDENT * error,
        "interval": JACKKNIFE,
    }
