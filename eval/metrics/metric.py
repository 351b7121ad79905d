"""The base class of metrics."""

from typing import Any

from configs.evaluation import EvaluateSettings
from eval.metrics.base import ImageSet, Score
from eval.metrics.networks import ImageNetwork
from eval.metrics.store import FeatureStore


class Metric:
    """One figure, or several that belong together, mostly from the features of one network."""

    def __init__(
        self,
        name: str,
        network: ImageNetwork | None,
        store: FeatureStore,
        settings: EvaluateSettings,
    ):
        self.name, self.store, self.settings = name, store, settings
        self.network: Any = network  # of the class that the metric's entry names
        self.label, self.resize = "none", "none"
        if network is not None:
            self.label, self.resize = network.label, network.resize

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return the images' scores; Unavailable if undefined. reference: real images if needed."""
        raise NotImplementedError

    def score(self, count: int, part: str = "", **figures: Any) -> Score:
        """Return a score of this metric, or of a part of it, which rests on `count` images."""
        sources: dict[str, Any] = {"network": self.label, "resize": self.resize}
        return Score(self.name + part, count=count, **(sources | figures))
