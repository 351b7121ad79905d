"""How far a figure might move with other images."""

from collections.abc import Callable, Sequence

import numpy as np

from eval.metrics.paired import paired_ratio

OVER_IMAGES = "95 %, bootstrap over images"
JACKKNIFE = "95 %, jackknife over 10 groups of images, reference fixed"
_WILSON = "95 %, Wilson, over images"
_GROUPS = 10
_NORMAL, _STUDENT = (
    1.96,
    2.262,
)  # 97.5 % quantiles, of the normal law and of t with 9 degrees of freedom


def mean_interval(values: Sequence[float]) -> dict[str, object]:
    """Value, ends and name of the interval of a mean over images."""
    return share_interval(values, [1.0] * len(values))


def share_interval(hits: Sequence[float], totals: Sequence[float]) -> dict[str, object]:
    """The same of sum(hits) / sum(totals), with one pair per image, and the pairs.

    Images that have all or nothing of what counts once get Wilson's interval (1927), and so do shares of 0 and 1, where
    drawing images anew finds no spread. Other figures have no ends for fewer than eight images.
    """
    ratio, got, most = (
        paired_ratio(hits, totals),
        np.asarray(hits, dtype=float),
        np.asarray(totals, dtype=float),
    )
    figures = {"value": ratio.value, "shares": tuple(zip(got.tolist(), most.tolist(), strict=True))}
    once = (most == 1).all() and np.isin(got, (0, 1)).all()
    if once or (got == 0).all() or (got == most).all():
        low, high = wilson(ratio.value, len(got))
        return figures | {"low": low, "high": high, "interval": _WILSON}
    return figures | {
        "low": ratio.low,
        "high": ratio.high,
        "interval": None if ratio.low is None else OVER_IMAGES,
    }


def wilson(share: float, count: int) -> tuple[float, float]:
    """Ends of the 95 % score interval of a share of `count` images."""
    z = _NORMAL**2 / count
    middle, half = share + z / 2, (z * share * (1 - share) + z**2 / 4) ** 0.5
    return (middle - half) / (1 + z), (middle + half) / (1 + z)


def jackknife(
    count: int, without: Callable[[np.ndarray], float], value: float
) -> dict[str, object]:
    """Value and interval of a figure whose bootstrap is biased, since images drawn twice narrow a covariance.

    Every group of images is left out once (delete-a-group jackknife; Kott 2001): value +- 2.262 standard errors,
    by the t law with 9 degrees of freedom.

    Args:
        count: images; without: the figure without the images at these indices; value: the figure of all images.
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
