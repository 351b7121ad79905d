"""CLIP models of open_clip: features of images and texts, of length 1."""

import pickle
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError

from configs.downloads import damage
from eval.metrics.base import Unavailable
from eval.metrics.networks import ImageNetwork
from eval.metrics.store import FeatureStore
from eval.metrics.weights import find_weights, library, weights_label


class ClipNetwork(ImageNetwork):
    """A CLIP model: open_clip's name with a file of weights, or a folder in open_clip's layout."""

    def __init__(
        self, flag: str, path: str, model: str, device: torch.device, longest: bool = False
    ):
        """Load the model.

        Args:
            flag: the flag that gave `path`, for errors.
            path: a file, a folder with open_clip_config.json, or a hub id.
            model: open_clip's name of the model in a file.
            device: where the model runs.
            longest: fit the longest edge and pad with zeros; otherwise fit the shortest and crop.

        Raises:
            Unavailable: library or weights are missing, or do not fit each other.
        """
        open_clip = library("open_clip", "open_clip_torch")
        weights = find_weights(flag, path)
        name, file = (model, str(weights)) if weights.is_file() else (f"local-dir:{weights}", None)
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
            raise Unavailable(
                f"--{flag} {path}: open_clip cannot load it: {damage(weights, error)}"
            ) from error
        self.module, self.transform = loaded[0].eval(), loaded[1]
        self.device = device
        self.width = self.module.text_projection.shape[-1]
        self.label = (
            f"open_clip {open_clip.__version__} {_name(weights, model)}, {weights_label(weights)}"
        )
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

    def text_features(self, store: FeatureStore, texts: list[str]) -> np.ndarray:
        """Return features (texts, width) float32, which are kept on disk."""
        return store.texts(self.label, texts, self.encode_texts)


def _name(weights: Path, model: str) -> str:
    return model if weights.is_file() else weights.name
