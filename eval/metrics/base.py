"""What metrics take and return; nothing here imports torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from eval.metrics.intervals import Estimate, Share

T = TypeVar("T")


class Unavailable(ValueError):
    """A metric cannot be computed; the message says what is missing and where to get it."""


@dataclass(frozen=True)
class ImageSet:
    """Images that can be read."""

    name: str  # of the set, for tables
    paths: tuple[Path, ...]
    keys: tuple[str, ...]  # sha256 of each file's content
    prompts: tuple[str, ...] = ()  # one per image, or none
    left_out: tuple[str, ...] = ()  # what belongs to the set but cannot be used, in words

    def __len__(self) -> int:
        return len(self.paths)

    def part(self, numbers: Sequence[int]) -> "ImageSet":
        """Return the images of these numbers, in this order."""

        def chosen(column: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(column[n] for n in numbers)

        return ImageSet(self.name, chosen(self.paths), chosen(self.keys), chosen(self.prompts))

    def __str__(self) -> str:
        return f"{self.name}, {len(self)} images"


@dataclass(frozen=True)
class Score:
    """A figure and what makes it comparable."""

    metric: str  # its name, and after a dot the part of it
    value: float
    count: int  # images that it rests on
    network: str  # library and weights
    resize: str
    low: float | None = None  # ends of the interval that `interval` names
    high: float | None = None
    interval: str | None = None
    reference: str | None = None  # name and count of the real images
    higher: bool = True  # whether more is better
    warning: str | None = None  # why the figure may mislead
    # (hits, total) of each image, where the figure is sum(hits) / sum(totals)
    shares: tuple[Share, ...] | None = field(default=None, repr=False)
    price: Estimate | None = None  # this figure minus that of the run's lossless baseline
