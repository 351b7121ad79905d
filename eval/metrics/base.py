"""What metrics are, take and return; nothing here imports torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from configs.evaluation import EvaluateSettings
from eval.metrics.intervals import Estimate, Share

if TYPE_CHECKING:  # these import torch, or what this module has
    from eval.metrics.networks import ImageNetwork
    from eval.metrics.store import FeatureStore


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


class Metric:
    """One figure, or several that belong together, mostly from the features of one network."""

    needs_reference = False  # whether it compares with real images

    def __init__(
        self,
        name: str,
        network: "ImageNetwork | None",
        store: "FeatureStore",
        settings: EvaluateSettings,
    ):
        self.name, self.network, self.store, self.settings = name, network, store, settings
        self.label, self.resize = "none", "none"
        if network is not None:
            self.label, self.resize = network.label, network.resize

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return the images' scores; Unavailable if undefined. reference: real images if needed."""
        raise NotImplementedError

    def score(self, count: int, part: str = "", **figures: object) -> Score:
        """Return a score of this metric, or of a part of it, which rests on `count` images."""
        sources = {"network": self.label, "resize": self.resize}
        return Score(self.name + part, count=count, **(sources | figures))
