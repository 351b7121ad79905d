"""FID: the Frechet distance between the features of two sets of images (Heusel et al. 2017)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from eval.metrics.base import ImageSet, Score, Unavailable
from eval.metrics.intervals import jackknife
from eval.metrics.metric import Metric

_USUAL = 10_000  # images; published figures have at least as many


@dataclass(frozen=True)
class Gaussian:
    """Mean (features,) and unbiased covariance (features, features), float64."""

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> "Gaussian":
        """Fit rows (images, features), of which there must be at least two."""
        rows = features.astype(np.float64)
        return cls(rows.mean(axis=0), np.cov(rows, rowvar=False))

    @cached_property
    def root(self) -> np.ndarray:
        """The symmetric square root of the covariance; at 2,048 features it takes seconds."""
        values, vectors = np.linalg.eigh(self.covariance)
        return (vectors * np.sqrt(values.clip(0))) @ vectors.T  # values below 0 come from rounding


def frechet_distance(one: Gaussian, other: Gaussian) -> float:
    """Return |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), with means m and covariances C.

    For R R = C2, the matrices C1 C2 and R C1 R have the same eigenvalues, and the second is
    symmetric.
    """
    shared = np.sqrt(np.linalg.eigvalsh(other.root @ one.covariance @ other.root).clip(0)).sum()
    apart = ((one.mean - other.mean) ** 2).sum()
    spread = np.trace(one.covariance) + np.trace(other.covariance) - 2 * shared
    return max(0.0, float(apart + spread))  # rounding alone makes it negative, for equal sets


class Fid(Metric):
    """The distance, with an interval that tells how far other generated images might move it."""

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return one score; Unavailable without two images on each side."""
        assert reference is not None, "entries of such metrics have needs_reference"
        least = min(len(images), len(reference))
        if least < 2:
            counts = f"{len(images)} images and {len(reference)} of reference"
            raise Unavailable(f"{counts}; a covariance needs two of each")
        rows, theirs = (self.network.features(self.store, s) for s in (images, reference))
        target = Gaussian.of(theirs)

        def distance(left_out: np.ndarray) -> float:
            return frechet_distance(Gaussian.of(np.delete(rows, left_out, axis=0)), target)

        warning = None
        if least <= rows.shape[1]:
            warning = f"{least} images are too few for {rows.shape[1]} features: the covariance is "
            warning += "singular and the figure mostly bias; it says nothing about quality"
        elif least < _USUAL:
            warning = f"biased upwards by {least} images; compare it with the same count only"
        notes: dict[str, Any] = {"reference": str(reference), "higher": False, "warning": warning}
        return [self.score(len(images), **notes, **jackknife(len(rows), distance))]
