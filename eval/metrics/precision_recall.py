"""Improved precision and recall (Kynkaanniemi et al. 2019, arXiv 1904.06991), k = 3."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from eval.metrics.base import ImageSet, Score, Unavailable
from eval.metrics.intervals import share_interval
from eval.metrics.metric import Metric

K = 3
_BLOCK = 1024  # rows of the distance matrix that are in memory at a time
_FEW = 1000


def radii(points: np.ndarray) -> np.ndarray:
    """Return the distance (points,) of each point (points, features) to its K-th nearest other."""
    nearest = [
        # K + 1, since a point is nearest to itself
        block.topk(K + 1, dim=1, largest=False).values[:, K]
        for block in _distances(points, points)
    ]
    return torch.cat(nearest).numpy()


def covered(points: np.ndarray, manifold: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Return whether each point (points, features) is inside a ball around a point of the manifold.

    manifold: (others, features), the centres of the balls. reach: (others,), their radii.
    """
    limits = torch.from_numpy(reach)
    inside = [(block <= limits).any(dim=1) for block in _distances(points, manifold)]
    return torch.cat(inside).numpy()


def _distances(points: np.ndarray, others: np.ndarray) -> Iterator[torch.Tensor]:
    """Yield distances in float64, block by block: (rows, others) each."""
    # float64: cdist multiplies matrices, and in fp32 even equal points would be apart.
    rows, columns = (torch.from_numpy(values.astype(np.float64)) for values in (points, others))
    for block in rows.split(_BLOCK):
        yield torch.cdist(block, columns)


class PrecisionRecall(Metric):
    """Precision and recall of generated images.

    Precision is the share of generated images that lie among the real ones, recall the share of
    real images that lie among the generated ones.
    """

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return two scores; Unavailable for three images or fewer.

        The interval of precision keeps the balls as they are. Recall has none, since other
        generated images would have other balls.
        """
        assert reference is not None, "entries of such metrics have needs_reference"
        few = min(len(images), len(reference))
        if few <= K:
            raise Unavailable(
                f"one of the two sets has only {few} images; k = {K} needs at least {K + 1}"
            )
        rows, theirs = (self.network.features(self.store, s) for s in (images, reference))
        precision = share_interval(covered(rows, theirs, radii(theirs)), np.ones(len(rows)))
        recall = {"value": float(covered(theirs, rows, radii(rows)).mean())}
        warning = f"{few} images span a coarse manifold; compare with the same counts only"
        notes: dict[str, Any] = {
            "reference": str(reference),
            "warning": warning if few < _FEW else None,
        }
        return [
            self.score(len(images), name, **notes, **figures)
            for name, figures in ((".precision", precision), (".recall", recall))
        ]
