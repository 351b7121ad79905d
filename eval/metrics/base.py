"""What metrics take and give."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from eval.metrics.paired import Estimate, Share


class Unavailable(ValueError):
    """A metric cannot be computed here; the message says what is missing and where users get it."""


@dataclass(frozen=True)
class ImageSet:
    """Images that can be read: files, hashes of their content (sha256), and prompts, if they have some.

    left_out: what belongs to the set but could not be used, in words.
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
    """A figure and what makes it comparable. low, high: an interval, and `interval` what it means.

    metric: name, by a dot its part; count: images it rests on; network: library and weights; reference: name and count
    of the other images; higher: whether more is better; warning: why the figure may mislead; shares: (hits, total) of
    each image, of figures that are sum(hits) / sum(totals); price: this minus that of the run's lossless baseline.
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
    """Computes the scores of a set of images; `reference` holds real images."""

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]: ...
