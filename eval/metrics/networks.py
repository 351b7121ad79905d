"""Networks that turn images into features, and for some into log p(class | image)."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eval.metrics.attribute_classifier import AttributeClassifier, to_pixels
from eval.metrics.attributes import Attributes
from eval.metrics.base import ImageSet, Unavailable
from eval.metrics.store import FeatureStore
from eval.metrics.weights import library, read_state, require_file, weights_label

_SIDE = 256  # pixels to which LANTERN's evaluation reduces images before FID
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of the channels


class ImageNetwork:
    """A network, and what its numbers depend on.

    Attributes:
        label: library and weights.
        resize: how images are brought to the network's size.
        width: how many features it has; in a row they come first, then the logits of classes.
    """

    label: str
    resize: str
    width: int

    def encode(self, images: list[Image.Image]) -> np.ndarray:
        """Return features and logits of RGB images, (images, width + classes)."""
        raise NotImplementedError

    def features(self, store: FeatureStore, images: ImageSet) -> np.ndarray:
        """Return the features (images, width) float32."""
        return self._rows(store, images)[:, : self.width]

    def log_probabilities(self, store: FeatureStore, images: ImageSet) -> np.ndarray:
        """Return log p(class | image), (images, classes)."""
        logits = torch.from_numpy(self._rows(store, images)[:, self.width :])
        return logits.log_softmax(dim=1).numpy()

    def _rows(self, store: FeatureStore, images: ImageSet) -> np.ndarray:
        return store.images(f"{self.label}, {self.resize}", images, self.encode)


class AttributeNetwork(ImageNetwork):
    """The tiny domain's classifier.

    The features are mean and maximum of its last feature maps; the classes are the pairs of kind
    and colour of the background.
    """

    resize = "none (128 x 128)"
    width = 256

    def __init__(self, path: str, device: torch.device):
        """Load attributes.safetensors; Unavailable where it is missing."""
        weights = require_file("attributes_path", path)
        try:
            self.classifier, self.device = AttributeClassifier.load(weights, str(device)), device
        except (ValueError, RuntimeError) as error:
            raise Unavailable(
                f"--attributes_path {path}: not an attribute classifier: {error}"
            ) from error
        self.label = f"attribute classifier, {weights_label(weights)}"

    @torch.inference_mode()
    def encode(self, images: list[Image.Image]) -> np.ndarray:
        """Return features and logits; Unavailable for images of another size."""
        pixels = to_pixels(tiny_pixels(images).to(self.device))
        maps = self.classifier.trunk(pixels)  # (images, 128, 8, 8)
        summary = torch.cat([maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))], dim=1)
        kinds, colours, *_ = self.classifier.labels.heads()
        kind, colour = self.classifier.background(summary).split([kinds, colours], dim=1)
        both = (kind.log_softmax(1)[:, :, None] + colour.log_softmax(1)[:, None]).flatten(1)
        return torch.cat([summary, both], dim=1).cpu().numpy()

    def attributes(self, store: FeatureStore, images: ImageSet) -> list[Attributes]:
        """Return what every image shows."""
        rows = store.images(f"{self.label}, classes, {self.resize}", images, self._classes)
        widths = list(self.classifier.labels.heads())
        return self.classifier.named(torch.from_numpy(rows).split(widths, dim=1))

    @torch.inference_mode()
    def _classes(self, images: list[Image.Image]) -> np.ndarray:
        """Return the classifier's logits, (images, classes of all heads)."""
        pixels = to_pixels(tiny_pixels(images).to(self.device))
        return torch.cat(self.classifier(pixels), dim=1).cpu().numpy()


class Inception(ImageNetwork):
    """Inception v3 of the original FID: 2,048 pooled features and 1,008 logits without bias."""

    resize = f"centre crop, Lanczos to {_SIDE}, TensorFlow's bilinear to 299"
    width = 2048

    def __init__(self, path: str, device: torch.device):
        """Load the weights; Unavailable where they or the library are missing."""
        fidelity = library("torch_fidelity", "torch-fidelity")
        weights = require_file("inception_path", path)
        # torch-fidelity would run code in the file, so it is read safely first.
        if "fc.weight" not in read_state("inception_path", weights):
            raise Unavailable(
                f"--inception_path {path}: not torch-fidelity's weights, fc.weight is missing"
            )
        try:
            module = fidelity.FeatureExtractorInceptionV3(
                "inception", ["2048", "logits_unbiased"], str(weights)
            )
        except RuntimeError as error:
            raise Unavailable(
                f"--inception_path {path}: not torch-fidelity's weights: {error}"
            ) from error
        self.module, self.device = module.to(device), device
        self.label = f"torch-fidelity {fidelity.__version__} Inception v3, {weights_label(weights)}"

    @torch.inference_mode()
    def encode(self, images: list[Image.Image]) -> np.ndarray:
        pixels = np.stack([np.asarray(_square(image, _SIDE)) for image in images])
        parts = self.module(torch.from_numpy(pixels).permute(0, 3, 1, 2).to(self.device))
        return torch.cat(parts, dim=1).cpu().numpy()


class Vgg(ImageNetwork):
    """VGG16 up to its second fully connected layer, before the ReLU.

    These are 4,096 features, as in LANTERN's evaluation.
    """

    resize = "bilinear to 224 x 224, without keeping the aspect"
    width = 4096

    def __init__(self, path: str, device: torch.device):
        """Load the weights; Unavailable where they or the library are missing."""
        vision = library("torchvision", "torchvision")
        weights = require_file("vgg_path", path)
        module = vision.models.vgg16()
        try:
            module.load_state_dict(read_state("vgg_path", weights))
        except RuntimeError as error:
            raise Unavailable(f"--vgg_path {path}: not VGG16's weights: {error}") from error
        module.classifier = module.classifier[:4]
        self.module, self.device = module.eval().to(device), device
        self.label = f"torchvision {vision.__version__} VGG16, {weights_label(weights)}"

    @torch.inference_mode()
    def encode(self, images: list[Image.Image]) -> np.ndarray:
        reduced = [
            np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR)) for image in images
        ]
        pixels = torch.from_numpy(np.stack(reduced)).permute(0, 3, 1, 2) / 255.0
        mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in _IMAGENET)
        return self.module(((pixels - mean) / deviation).to(self.device)).cpu().numpy()


def tiny_pixels(images: list[Image.Image]) -> Tensor:
    """Return the tiny domain's images as uint8 (images, 128, 128, 3); Unavailable for others."""
    sizes = {image.size for image in images} - {(128, 128)}
    if sizes:
        width, height = sizes.pop()
        raise Unavailable(
            f"an image of {width} x {height} pixels; the tiny domain's have 128 x 128"
        )
    return torch.from_numpy(np.stack([np.asarray(image) for image in images]))


def _square(image: Image.Image, side: int) -> Image.Image:
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    square = image.crop((left, top, left + short, top + short))
    return square.resize((side, side), Image.Resampling.LANCZOS)
