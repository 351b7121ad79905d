"""How far a figure might move with other images."""

from collections.abc import Callable, Sequence

import numpy as np

from eval.paired import paired_ratio

OVER_IMAGES = "95 %, bootstrap over images"
JACKKNIFE = "95 %, jackknife over 10 groups of images, reference fixed"
_GROUPS = 10


def mean_interval(values: Sequence[float]) -> dict[str, object]:
    """Value, ends and name of the interval of a mean over images."""
    return share_interval(values, [1.0] * len(values))


def share_interval(hits: Sequence[float], totals: Sequence[float]) -> dict[str, object]:
    """The same of sum(hits) / sum(totals), with one pair per image; no ends for fewer than eight images."""
    ratio = paired_ratio(hits, totals)
    named = None if ratio.low is None else OVER_IMAGES
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high, "interval": named}


def jackknife(count: int, without: Callable[[np.ndarray], float], value: float) -> dict[str, object]:
    """Value and interval of a figure whose bootstrap is biased, since images drawn twice narrow a covariance.

    Every group of images is left out once (delete-a-group jackknife; Kott 2001): value +- 1.96 standard errors.

    Args:
        count: images; without: the figure without the images at these indices; value: the figure of all images.
    """
    if count < 2 * _GROUPS:
        return {"value": value}
    groups = np.array_split(np.random.default_rng(0).permutation(count), _GROUPS)
    figures = np.array([without(group) for group in groups])
    error = float(np.sqrt((_GROUPS - 1) / _GROUPS * ((figures - figures.mean()) ** 2).sum()))
    return {"value": value, "low": value - 1.96 * error, "high": value + 1.96 * error, "interval": JACKKNIFE}
