"""CLIP models of open_clip: normalised features of images and texts."""

import pickle
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError

from eval.metrics.base import Unavailable
from eval.metrics.networks import ImageNetwork
from eval.metrics.store import FeatureStore
from eval.metrics.weights import find_weights, library, weights_label


class ClipNetwork(ImageNetwork):
    """A model by open_clip's name and a file of weights, or from a folder in open_clip's layout, which names it."""

    def __init__(
        self, flag: str, path: str, model: str, device: torch.device, longest: bool = False
    ):
        """Load the model.

        Args:
            flag: that named `path`, for errors; path: a file, a folder with open_clip_config.json, or a hub id.
            model: open_clip's name of the model in a file.
            longest: fit the longest edge and pad with zeros, instead of cutting the longest edge off.

        Raises Unavailable if library or weights are not there, or do not fit each other.
        """
        open_clip = library("open_clip", "open_clip_torch")
        place = find_weights(flag, path)
        name, file = (model, str(place)) if place.is_file() else (f"local-dir:{place}", None)
        mode = "longest" if longest else None
        try:
            loaded = open_clip.create_model_from_pretrained(
                name, file, device=device, image_resize_mode=mode
            )
            self.tokenizer = open_clip.get_tokenizer(name)
        except (
            RuntimeError,
            ValueError,
            OSError,
            KeyError,
            SafetensorError,
            pickle.UnpicklingError,
        ) as error:
            raise Unavailable(f"--{flag} {path}: open_clip cannot load it: {error}") from error
        self.module, self.transform = loaded[0].eval(), loaded[1]
        self.device = device
        self.width = self.module.text_projection.shape[-1]
        self.label = (
            f"open_clip {open_clip.__version__} {_name(place, model)}, {weights_label(place)}"
        )
        self.resize = "longest edge, padded with zeros" if longest else "shortest edge, centre crop"

    @torch.inference_mode()
    def encode(self, images: list[Image.Image]) -> np.ndarray:
        """(images, width), of length 1."""
        pixels = torch.stack([self.transform(image) for image in images]).to(self.device)
        return self.module.encode_image(pixels, normalize=True).float().cpu().numpy()

    @torch.inference_mode()
    def encode_texts(self, texts: list[str]) -> np.ndarray:
        """(texts, width), of length 1; texts beyond the model's 77 tokens are cut."""
        return (
            self.module.encode_text(self.tokenizer(texts).to(self.device), normalize=True)
            .float()
            .cpu()
            .numpy()
        )

    def text_features(self, store: FeatureStore, texts: list[str]) -> np.ndarray:
        """(texts, width) float32, kept on disk."""
        return store.texts(self.label, texts, self.encode_texts)


def _name(place: Path, model: str) -> str:
    return model if place.is_file() else place.name
