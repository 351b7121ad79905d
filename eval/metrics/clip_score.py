"""CLIP score: the cosine between the CLIP features of an image and of its prompt.

After Hessel et al. 2021, without their weight of 2.5. HPSv2 and v2.1 are the same figure with
fine-tuned weights (Wu et al. 2023, arXiv 2306.09341).
"""

from eval.metrics.base import ImageSet, Score
from eval.metrics.clip import ClipNetwork
from eval.metrics.intervals import mean_interval
from eval.metrics.store import FeatureStore


class ClipScore:
    """The mean cosine; `prefix` is written before every prompt."""

    def __init__(self, name: str, network: ClipNetwork, store: FeatureStore, prefix: str = ""):
        self.name, self.network, self.store, self.prefix = name, network, store, prefix

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return one score."""
        texts = [self.prefix + prompt for prompt in images.prompts]
        seen = self.network.features(self.store, images)
        said = self.network.text_features(self.store, texts)
        prefix = f", prefix {self.prefix!r}" if self.prefix else ""
        return [
            Score(
                self.name,
                count=len(images),
                network=self.network.label + prefix,
                resize=self.network.resize,
                **mean_interval((seen * said).sum(axis=1)),
            )
        ]
