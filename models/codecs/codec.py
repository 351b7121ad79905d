"""A target without its transformer: pictures of any size -> codes, and which captions fit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from models.base import ImageGrid
from models.codecs.palette import Palette
from models.codecs.vqgan import ImageTokenizer

if TYPE_CHECKING:
    from models.codecs.glm_codec import GlmVision


@dataclass(frozen=True)
class Fit:
    """How a recipe makes a picture cover the model's size, of which the middle is cropped."""

    resample: Image.Resampling
    halves: bool  # first, average boxes of 2 x 2 pixels while both sides are twice too long

    def __call__(self, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        """Return the RGB picture at size (width, height)."""
        width, height = size
        while self.halves and image.width >= 2 * width and image.height >= 2 * height:
            image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
        scale = max(width / image.width, height / image.height)
        image = image.resize(
            (round(image.width * scale), round(image.height * scale)), self.resample
        )
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, top, left + width, top + height))


META = Fit(Image.Resampling.LANCZOS, halves=False)  # Chameleon's public image tokenizer
# guided diffusion's recipe, taken over by LlamaGen and Lumina-mGPT
ADM = Fit(Image.Resampling.BICUBIC, halves=True)


@dataclass(frozen=True)
class Codec:
    """What turns pictures and captions into a target's tokens."""

    images: "ImageTokenizer | Palette | GlmVision"
    grid: ImageGrid
    vocab: int  # number of codes
    length: Callable[[str], int]  # tokens of a caption's prompt; ValueError if it is too long
    fit: Fit

    @property
    def size(self) -> tuple[int, int]:
        cell = self.images.downsampling
        return self.grid.columns * cell, self.grid.rows * cell

    def encode(self, image: Image.Image) -> Tensor:
        """Return the codes (tokens,) of an RGB picture of any size, in raster order."""
        pixels = np.asarray(self.fit(image, self.size))  # (height, width, 3)
        # A copy: PIL's memory is read-only, of which torch warns.
        return self.images.encode(torch.from_numpy(pixels.copy())[None])[0]
