"""CLIP models of open_clip, and the metrics on their features of images and texts."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from configs.evaluation import EvaluateSettings
from eval.metrics.base import ImageSet, Score
from eval.metrics.intervals import mean_interval
from eval.metrics.metric import Metric
from eval.metrics.networks import ImageNetwork
from eval.metrics.store import FeatureStore
from eval.metrics.weights import find_weights, fitting, library, read_state, weights_label


class ClipNetwork(ImageNetwork):
    """A CLIP model: open_clip's name with a file of weights, or a folder in open_clip's layout."""

    fault = "open_clip cannot load it"

    def __init__(self, weights: Path, device: torch.device, model: str, longest: bool = False):
        """Load a file, with open_clip's name of its `model`, or a folder.

        longest: fit the longest edge and pad with zeros; otherwise fit the shortest and crop.
        """
        open_clip = library("open_clip", "open_clip_torch")
        name, file = (model, str(weights)) if weights.is_file() else (f"local-dir:{weights}", None)
        mode = "longest" if longest else None
        self.module, self.transform = open_clip.create_model_from_pretrained(
            name, file, device=device, image_resize_mode=mode
        )
        self.tokenizer = open_clip.get_tokenizer(name)
        self.module.eval()
        self.device = device
        self.width = self.module.text_projection.shape[-1]
        shown = model if weights.is_file() else weights.name
        self.label = f"open_clip {open_clip.__version__} {shown}, {weights_label(weights)}"
        self.resize = "longest edge, padded with zeros" if longest else "shortest edge, centre crop"

    @torch.inference_mode()
    def encode(self, images: list[Image.Image]) -> np.ndarray:
        """Return features (images, width) of length 1."""
        pixels = torch.stack([self.transform(image) for image in images]).to(self.device)
        return self.module.encode_image(pixels, normalize=True).float().cpu().numpy()

    @torch.inference_mode()
    def encode_texts(self, texts: list[str]) -> np.ndarray:
        """Return features (texts, width) of length 1; a text is cut after 77 tokens."""
        tokens = self.tokenizer(texts).to(self.device)
        return self.module.encode_text(tokens, normalize=True).float().cpu().numpy()


class ClipScore(Metric):
    """The mean cosine between the CLIP features of an image and of its prompt.

    After Hessel et al. 2021, without their weight of 2.5. HPSv2 and v2.1 are the same figure with
    fine-tuned weights (Wu et al. 2023, arXiv 2306.09341), and without a prefix before the prompts.
    """

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return one score."""
        chosen = self.settings.clip_prefix
        prefix = chosen if self.name == "clip" and chosen != "none" else ""
        texts = [prefix + prompt for prompt in images.prompts]
        seen = self.network.features(self.store, images)
        said = self.store.texts(self.network.label, texts, self.network.encode_texts)
        label = self.label + (f", prefix {prefix!r}" if prefix else "")
        figures = mean_interval((seen * said).sum(axis=1))
        return [self.score(len(images), network=label, **figures)]


class Aesthetic(Metric):
    """The mean aesthetic score, about 1 to 10: LAION's head on features of OpenAI's ViT-L/14.

    The published head has no activations, so it is affine in the features.
    """

    def __init__(
        self, name: str, network: ClipNetwork, store: FeatureStore, settings: EvaluateSettings
    ):
        """Read the head; Unavailable if it does not fit the features."""
        super().__init__(name, network, store, settings)
        weights = find_weights("aesthetic_path", settings.aesthetic_path)
        wanted = f"not a head from {network.width} features to one score"
        with fitting("aesthetic_path", weights, wanted):
            self.head = _layers(read_state(weights))
            widths = [weight.shape for weight, _ in self.head]  # (outputs, inputs)
            if not widths or widths[0][1] != network.width or widths[-1][0] != 1:
                raise ValueError(f"got layers of {list(map(tuple, widths))}")
        self.label += f"; head {weights_label(weights)}"

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        """Return one score."""
        rows = torch.from_numpy(self.network.features(self.store, images))  # (images, features)
        for weight, bias in self.head:
            rows = torch.nn.functional.linear(rows, weight, bias)
        return [self.score(len(images), **mean_interval(rows[:, 0].double().numpy()))]


def _layers(state: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of the head's linear layers, in order.

    The file holds `layers.N.weight` (with nothing between the layers but dropout), or the `weight`
    of a single layer.
    """
    names = [name.removesuffix("weight") for name in state if name.endswith("weight")]
    ordered = sorted(names, key=lambda name: int("0" + "".join(filter(str.isdigit, name))))
    return [(state[f"{name}weight"].float(), state[f"{name}bias"].float()) for name in ordered]
