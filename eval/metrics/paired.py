"""Figures over images with bootstrap intervals (Efron 1979), of one method or of two compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Share = tuple[float, float]  # an image's hits, and how many it could have
LEAST_IMAGES = 8  # for an interval: with fewer it is far too narrow


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its 95 % interval, None for fewer than eight images."""

    value: float
    low: float | None
    high: float | None


def estimate(figure: Callable[[np.ndarray], float], images: int, samples: int = 4000) -> Estimate:
    """Return a figure with its interval, from drawing the images anew, with replacement.

    Draws in which the figure is not defined (NaN) are left out.

    Args:
        figure: returns the figure from how often each image counts, (images,).
        images: how many there are.
        samples: number of draws.
    """
    value, random = float(figure(np.ones(images))), np.random.default_rng(0)
    if images < LEAST_IMAGES:
        return Estimate(value, None, None)
    drawn = [
        figure(np.bincount(random.integers(images, size=images), minlength=images))
        for _ in range(samples)
    ]
    return Estimate(value, *np.nanquantile(drawn, (0.025, 0.975)).tolist())


def paired_difference(
    ours: Sequence[Share], theirs: Sequence[Share], samples: int = 4000
) -> Estimate:
    """Return sum(hits) / sum(totals) of one method minus that of another, over the same images.

    The two pairs of an image are drawn together.

    Args:
        ours, theirs: (hits, total) of each image.
        samples: number of draws.
    """
    one, other = (np.array(shares, dtype=float) for shares in (ours, theirs))  # (images, 2) each
    assert one.shape == other.shape

    def apart(counts: np.ndarray) -> float:
        (hits, total), (their_hits, their_total) = counts @ one, counts @ other
        return hits / total - their_hits / their_total

    return estimate(apart, len(one), samples)


def paired_ratio(above: Sequence[float], below: Sequence[float], samples: int = 4000) -> Estimate:
    """Return sum(above) / sum(below); the two figures of an image are drawn together.

    The interval says how far other images might move the ratio, not how far another hour of the
    same machine might.

    Raises:
        ValueError: the two do not have one figure each per image.
    """
    if len(above) != len(below) or not len(above):
        raise ValueError(
            f"found {len(above)} and {len(below)} figures; expected one pair per image"
        )
    over, under = np.array(above, dtype=float), np.array(below, dtype=float)
    return estimate(lambda counts: (counts @ over) / (counts @ under), len(over), samples)
