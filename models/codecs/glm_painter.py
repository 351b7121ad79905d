"""GLM-Image's codes as pictures: painted by diffusers' GlmImagePipeline, or a pixel per code."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from support.border import Failure

if TYPE_CHECKING:
    from diffusers import GlmImagePipeline

_NETWORKS = ("text_encoder", "transformer", "vae")
_FILES = ("model_index.json", "scheduler", "tokenizer", *_NETWORKS)


def lacks_painter(root: Path) -> str:
    """Return, in words, what a checkpoint cannot be painted without; "" if nothing is missing."""
    missing = [name for name in _FILES if not (root / name).exists()]
    missing = missing or [f"{n}/*.safetensors" for n in _NETWORKS if not _weights(root / n)]
    if missing:
        return f"{root} has no {', '.join(missing)}"
    there = find_spec("diffusers.pipelines.glm_image") is not None
    return "" if there else "this version of diffusers has no GlmImagePipeline"


def _weights(folder: Path) -> list[Path]:
    return list(folder.glob("*.safetensors"))


@dataclass(frozen=True)
class GlmPainter:
    """The pipeline with its own steps and guidance; its weights are read for the first image."""

    root: Path
    device: torch.device
    cell: ClassVar[int] = 32  # pixels of a token along one side

    def to(self, device: torch.device) -> GlmPainter:
        return replace(self, device=device)

    @property
    def bytes(self) -> int:
        """Memory of its weights, in the type that they are stored in."""
        return sum(file.stat().st_size for n in _NETWORKS for file in _weights(self.root / n))

    @cached_property
    def pipeline(self) -> GlmImagePipeline:
        """diffusers' pipeline without the autoregressive stage; a Failure if it cannot be read."""
        import transformers.utils.logging as theirs
        from diffusers import GlmImagePipeline
        from diffusers.utils import logging

        logging.disable_progress_bar()
        theirs.disable_progress_bar()
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        with warnings.catch_warnings():
            # later versions of diffusers call it dtype, which earlier ones do not know
            warnings.filterwarnings("ignore", "`torch_dtype` is deprecated", FutureWarning)
            try:
                pipeline = GlmImagePipeline.from_pretrained(
                    self.root, vision_language_encoder=None, processor=None, torch_dtype=dtype
                )
            except Exception as error:  # on damaged files diffusers fails with errors of many kinds
                shown = " ".join(str(error).split())
                raise Failure(f"{self.root} cannot be read by diffusers: {shown}") from error
        pipeline.set_progress_bar_config(disable=True)
        return pipeline.to(self.device)

    def paint(self, codes: Tensor, size: tuple[int, int], text: str, seed: int) -> Tensor:
        """Codes (tokens,) -> pixels (height, width, 3), uint8 on the CPU.

        size: rows and columns of the codes. seed: of the pipeline's noise.
        """
        # a token stands for 2 x 2 of the pipeline's
        codes = last_grid(codes, size).repeat_interleave(2, 0).repeat_interleave(2, 1)
        image = self.pipeline(
            text,
            prior_token_ids=codes.view(1, -1).to(self.device),
            height=self.cell * size[0],
            width=self.cell * size[1],
            generator=torch.Generator().manual_seed(seed),
        ).images[0]
        return torch.from_numpy(np.array(image))


@dataclass(frozen=True)
class TokenPicture:
    """A pixel per token: its code is 256 red + green. It takes the place of an image tokenizer.

    painter: of finished images; None: they stay tokens.
    """

    painter: GlmPainter | None = None

    def to(self, device: torch.device) -> TokenPicture:
        return replace(self, painter=self.painter and self.painter.to(device))

    def decode(self, codes: Tensor, size: tuple[int, int]) -> Tensor:
        """Codes (images, tokens) -> pixels (images, height, width, 3), uint8 on the CPU.

        Of several grids the last one is shown; size: its rows and columns. With a painter, a token
        has the size that it will have in the picture.
        """
        codes = last_grid(codes, size).cpu()
        pixels = torch.stack([codes // 256, codes % 256, torch.zeros_like(codes)], -1).byte()
        cell = 1 if self.painter is None else self.painter.cell
        return pixels.repeat_interleave(cell, 1).repeat_interleave(cell, 2)


def last_grid(codes: Tensor, size: tuple[int, int]) -> Tensor:
    """Codes (..., tokens) -> those of the last grid (..., rows, columns)."""
    return codes[..., -size[0] * size[1] :].unflatten(-1, size)


def codes_of(pixels: Tensor) -> Tensor:
    """Pixels (..., 3), uint8 -> codes (...)."""
    return 256 * pixels[..., 0].long() + pixels[..., 1].long()
