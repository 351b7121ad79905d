"""The judge of the included world, as a network of `evaluate`."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eval.metrics.base import ImageSet, Unavailable
from eval.metrics.networks import ImageNetwork, stacked
from eval.metrics.store import FeatureStore
from eval.metrics.weights import weights_label
from scenes.attribute_classifier import AttributeClassifier, Attributes, summary, to_pixels


class AttributeNetwork(ImageNetwork):
    """The tiny domain's classifier: mean and maximum of its last feature maps, 256 features."""

    resize = "none (128 x 128)"
    fault = "not an attribute classifier"

    def __init__(self, weights: Path, device: torch.device):
        self.classifier, self.device = AttributeClassifier.load(weights, str(device)), device
        self.label = f"attribute classifier, {weights_label(weights)}"

    @torch.inference_mode()
    def encode(self, images: list[Image.Image]) -> np.ndarray:
        return summary(self.classifier.trunk(self._pixels(images))).cpu().numpy()

    def attributes(self, store: FeatureStore, images: ImageSet) -> list[Attributes]:
        rows = store.images(f"{self.label}, classes, {self.resize}", images, self._classes)
        widths = list(self.classifier.labels.heads())
        return self.classifier.named(torch.from_numpy(rows).split(widths, dim=1))

    @torch.inference_mode()
    def _classes(self, images: list[Image.Image]) -> np.ndarray:
        """Return the classifier's logits, (images, classes of all heads)."""
        return torch.cat(self.classifier(self._pixels(images)), dim=1).cpu().numpy()

    def _pixels(self, images: list[Image.Image]) -> Tensor:
        """Return the classifier's input; Unavailable for images of another size."""
        for image in images:
            if image.size != (128, 128):
                name, (width, height) = image.info.get("file", "an image"), image.size
                wanted = "images of the tiny model and of their --ref_dir have 128 x 128"
                raise Unavailable(f"{name} has {width} x {height} pixels; {wanted}")
        return to_pixels(stacked(images).to(self.device))
