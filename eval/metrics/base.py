"""What metrics take and return."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from eval.metrics.paired import Estimate, Share


class Unavailable(ValueError):
    """A metric cannot be computed; the message says what is missing and where to get it."""


@dataclass(frozen=True)
class ImageSet:
    """Images that can be read.

    Attributes:
        name: of the set, for tables.
        paths: the files.
        keys: sha256 of each file's content.
        prompts: one per image, or none.
        left_out: what belongs to the set but cannot be used, in words.
    """

    name: str
    paths: tuple[Path, ...]
    keys: tuple[str, ...]
    prompts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class Score:
    """A figure and what makes it comparable.

    Attributes:
        metric: its name, and after a dot the part of it.
        count: how many images it rests on.
        network: library and weights.
        low, high: ends of an interval; `interval` says which one.
        reference: name and count of the real images.
        higher: whether more is better.
        warning: why the figure may mislead.
        shares: (hits, total) of each image, where the figure is sum(hits) / sum(totals).
        price: this figure minus that of the run's lossless baseline.
    """

    metric: str
    value: float
    count: int
    network: str
    resize: str
    low: float | None = None
    high: float | None = None
    interval: str | None = None
    reference: str | None = None
    higher: bool = True
    warning: str | None = None
    shares: tuple[Share, ...] | None = field(default=None, repr=False)
    price: Estimate | None = None


class Metric(Protocol):
    """One figure, or several that belong together."""

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return the scores of the images; `reference` holds real images.

        Raises:
            Unavailable: the figure is not defined for these images.
        """
        ...
