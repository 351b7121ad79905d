"""CLIP models of open_clip, and the metrics on their features of images and texts."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eval.metrics.base import ImageSet, Score
from eval.metrics.intervals import mean_interval
from eval.metrics.metric import Metric
from eval.metrics.networks import ImageNetwork
from eval.metrics.weights import library, weights_label
from support.progress import plural


class ClipNetwork(ImageNetwork):
    """A CLIP model: open_clip's name with a file of weights, or a folder in open_clip's layout."""

    fault = "open_clip cannot load it"

    def __init__(self, weights: Path, device: torch.device, model: str, longest: bool = False):
        """Load a file, with open_clip's name of its `model`, or a folder.

        longest: fit the longest edge and pad with zeros; otherwise fit the shortest and crop.
        """
        open_clip = library("open_clip", "open_clip_torch")
        name, file = (model, str(weights)) if weights.is_file() else (f"local-dir:{weights}", None)
        self.module, self.transform = open_clip.create_model_from_pretrained(
            name, file, device=device, image_resize_mode="longest" if longest else None
        )
        stored = weights if weights.is_file() else weights / "open_clip_model.safetensors"
        _refuse_stretched(self.module, open_clip.factory.load_state_dict(str(stored)))
        self.tokenizer = open_clip.get_tokenizer(name)
        self.module.eval()
        self.device = device
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
        """Return features (texts, width) of length 1; longer texts are cut, see `count_cut`."""
        tokens = self.tokenizer(texts).to(self.device)
        return self.module.encode_text(tokens, normalize=True).float().cpu().numpy()

    def count_cut(self, texts: list[str]) -> tuple[int, int]:
        """Return how many texts have more tokens than the network reads, and how many it reads."""
        read = self.tokenizer([""]).shape[1]
        filled, empty = self.tokenizer(texts, read + 1)[:, -1], self.tokenizer([""])[0, -1]
        return int((filled != empty).sum()), read


def _refuse_stretched(module: torch.nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Raise a ValueError for weights of another size of images or texts.

    open_clip would stretch their positions until they fit the network.
    """
    for name, value in module.state_dict().items():
        other = stored.get(name, value).shape
        if name.endswith("positional_embedding") and other != value.shape:
            shapes = f"{name} {tuple(other)}, which has {tuple(value.shape)}"
            raise ValueError(f"weights of another network than this model: {shapes}")


class ClipScore(Metric):
    """The mean cosine between the CLIP features of an image and of its prompt.

    After Hessel et al. 2021, without their weight of 2.5. HPSv2 and v2.1 are the same figure with
    fine-tuned weights (Wu et al. 2023, arXiv 2306.09341), and without a prefix before the prompts.
    """

    def scores(self, images: ImageSet, reference: ImageSet | None) -> list[Score]:
        chosen = self.settings.clip_prefix
        prefix = chosen if self.name == "clip" and chosen != "none" else ""
        texts = [prefix + prompt for prompt in images.prompts]
        seen = self.network.features(self.store, images)
        said = self.store.texts(self.network.label, texts, self.network.encode_texts)
        label = self.label + (f", prefix {prefix!r}" if prefix else "")
        figures = mean_interval((seen * said).sum(axis=1))
        cut, read = self.network.count_cut(texts)
        warning = f"{plural(cut, 'text')} of {len(texts)} cut after {read} tokens" if cut else None
        return [self.score(len(images), network=label, warning=warning, **figures)]
