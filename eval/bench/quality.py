"""How well the tiny model's images show their prompts: what a relaxed row costs. Outside of what is timed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from configs.fields import SettingsError
from configs.schema import CLASSIFIER
from decoding.flight import FinishedImage, Job
from eval.metrics.attributes import AttributeClassifier, Attributes, compare
from models.base import TargetModel

QUALITIES = ("background", "colour", "shape")  # of the shares that `compare` gives


class Judge:
    """Shares of images with the right background, of right colours and of right shapes; an image is looked at once."""

    def __init__(self, target: TargetModel, model_path: str, jobs: Sequence[Job]):
        """A SettingsError if a prompt is not one of the tiny model's kind."""
        self.target, self.classifier = (
            target,
            AttributeClassifier.load(Path(model_path) / CLASSIFIER),
        )
        self.seen: dict[bytes, Attributes] = {}
        try:
            self.said = {
                job: Attributes.from_prompt(job.prompt, self.classifier.labels) for job in jobs
            }
        except ValueError as error:
            raise SettingsError(f"--quality: {error}") from error

    def __call__(self, images: Sequence[FinishedImage]) -> dict[str, float]:
        shares = compare(
            [self._look(image.codes) for image in images],
            [self.said[image.job] for image in images],
        )
        return {name: shares[name] for name in QUALITIES}

    def _look(self, codes: Tensor) -> Attributes:
        """What an image of these codes (tokens,) shows."""
        key = codes.numpy().tobytes()
        if key not in self.seen:
            self.seen[key] = self.classifier.predict(np.asarray(self.target.to_image(codes[None])))[
                0
            ]
        return self.seen[key]
