"""Inception score: exp of the mean KL divergence of p(class | image) from p(class).

Salimans et al. 2016.
"""

import numpy as np

from eval.metrics.base import ImageSet, Score, Unavailable
from eval.metrics.metric import Metric

_SPLITS = 10
_SPREAD = f"mean +- standard deviation of {_SPLITS} splits"


def inception_score(log_probabilities: np.ndarray) -> float:
    """Return the score of rows of log p(class | image), (images, classes)."""
    rows = log_probabilities.astype(np.float64)
    p = np.exp(rows)
    mean = np.log(p.mean(axis=0).clip(1e-300))
    return float(np.exp((p * (rows - mean)).sum(axis=1).mean()))


class InceptionScore(Metric):
    """The mean over ten splits in a fixed random order, as published figures are."""

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return one score; Unavailable for fewer images than splits."""
        if len(images) < _SPLITS:
            raise Unavailable(f"{len(images)} images; each of the {_SPLITS} splits needs one")
        rows = self.network.log_probabilities(self.store, images)
        order = np.random.default_rng(0).permutation(len(rows))
        figures = np.array([inception_score(rows[part]) for part in np.array_split(order, _SPLITS)])
        mean, spread = float(figures.mean()), float(figures.std())
        share, classes = len(images) // _SPLITS, rows.shape[1]
        few = f"biased downwards: {share} images per split for {classes} classes"
        ends = {"low": mean - spread, "high": mean + spread, "interval": _SPREAD}
        warning = few if share < classes else None
        return [self.score(len(images), value=mean, warning=warning, **ends)]
