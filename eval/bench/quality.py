"""How well the tiny model's images show their prompts: what relaxed acceptance costs. Not timed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from configs.fields import SettingsError
from configs.schema import CLASSIFIER
from decoding.images import FinishedImage, Job
from eval.metrics.attribute_classifier import AttributeClassifier
from eval.metrics.attributes import Attributes, compare
from models.target import TargetModel

QUALITIES = ("background", "colour", "shape")  # of the shares that `compare` gives


class Judge:
    """Shares of images with the right background, and of the right colours and shapes.

    The same image is classified once.
    """

    def __init__(self, target: TargetModel, model_path: str, jobs: Sequence[Job]):
        """Load the classifier; a SettingsError for a prompt that the tiny model does not know."""
        self.target = target
        self.classifier = AttributeClassifier.load(Path(model_path) / CLASSIFIER)
        self.seen: dict[bytes, Attributes] = {}
        try:
            self.said = {
                job: Attributes.from_prompt(job.prompt, self.classifier.labels) for job in jobs
            }
        except ValueError as error:
            raise SettingsError(f"--quality: {error}") from error

    def __call__(self, images: Sequence[FinishedImage]) -> dict[str, float]:
        """Return the shares, each in [0, 1], by name."""
        shares = compare(
            [self._look(image.codes) for image in images],
            [self.said[image.job] for image in images],
        )
        return {name: shares[name] for name in QUALITIES}

    def _look(self, codes: Tensor) -> Attributes:
        """Return what the image of these codes (tokens,) shows."""
        key = codes.numpy().tobytes()
        if key not in self.seen:
            pixels = np.asarray(self.target.to_image(codes[None]))
            self.seen[key] = self.classifier.predict(pixels)[0]
        return self.seen[key]
