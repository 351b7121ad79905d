"""Networks that turn images into features."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eval.metrics.base import ImageSet
from eval.metrics.store import FeatureStore
from eval.metrics.weights import library, read_state, weights_label

_SIDE = 256  # pixels to which LANTERN's evaluation reduces images before FID
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of the channels


class ImageNetwork:
    """A network, and what its numbers depend on."""

    label: str  # library and weights
    resize: str  # how images are brought to the network's size
    fault: str  # what is wrong with weights that cannot be loaded

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        """Return features (images, features) of RGB images."""
        raise NotImplementedError

    def features(self, store: FeatureStore, images: ImageSet) -> np.ndarray:
        """Return the features (images, features) float32."""
        return store.images(f"{self.label}, {self.resize}", images, self.encode)


class Inception(ImageNetwork):
    """Inception v3 of the original FID: 2,048 pooled features."""

    resize = f"centre crop, Lanczos to {_SIDE}, TensorFlow's bilinear to 299"
    fault = "not torch-fidelity's weights"

    def __init__(self, weights: Path, device: torch.device):
        fidelity = library("torch_fidelity", "torch-fidelity")
        # torch-fidelity would run code in the file, so it is read safely first
        if "fc.weight" not in read_state(weights):
            raise ValueError("fc.weight is missing")
        module = fidelity.FeatureExtractorInceptionV3("inception", ["2048"], str(weights))
        self.module, self.device = module.to(device), device
        self.label = f"torch-fidelity {fidelity.__version__} Inception v3, {weights_label(weights)}"

    @torch.inference_mode()
    def encode(self, images: list[Image.Image]) -> np.ndarray:
        pixels = stacked([_square(image) for image in images]).permute(0, 3, 1, 2)
        # uint8, which torch-fidelity requires: its network scales pixels itself.
        (pooled,) = self.module(pixels.to(self.device))
        return pooled.cpu().numpy()


class Vgg(ImageNetwork):
    """VGG16 up to its second dense layer, before the ReLU: 4,096 features, as LANTERN's."""

    resize = "bilinear to 224 x 224, without keeping the aspect"
    fault = "not VGG16's weights"

    def __init__(self, weights: Path, device: torch.device):
        vision = library("torchvision", "torchvision")
        module = vision.models.vgg16()
        module.load_state_dict(read_state(weights))
        module.classifier = module.classifier[:4]
        self.module, self.device = module.eval().to(device), device
        self.label = f"torchvision {vision.__version__} VGG16, {weights_label(weights)}"

    @torch.inference_mode()
    def encode(self, images: list[Image.Image]) -> np.ndarray:
        reduced = [image.resize((224, 224), Image.Resampling.BILINEAR) for image in images]
        pixels = stacked(reduced).permute(0, 3, 1, 2) / 255.0
        mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in _IMAGENET)
        return self.module(((pixels - mean) / deviation).to(self.device)).cpu().numpy()


def _square(image: Image.Image) -> Image.Image:
    # Not ImageOps.fit, which crops at half pixels where the edges differ by an odd number.
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    square = image.crop((left, top, left + short, top + short))
    return square.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)


def stacked(images: list[Image.Image]) -> Tensor:
    """Return images of one size as uint8 (images, height, width, 3)."""
    return torch.from_numpy(np.stack([np.asarray(image) for image in images]))
