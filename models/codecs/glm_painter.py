"""GLM-Image's pictures of its codes, by diffusers' GlmImagePipeline."""

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

from models.codecs.token_picture import last_grid

if TYPE_CHECKING:
    from diffusers import GlmImagePipeline

_PARTS = ("scheduler", "text_encoder", "tokenizer", "transformer", "vae")


def find_painter(root: Path, device: torch.device) -> GlmPainter | None:
    """Return the painter of a whole checkpoint; None if a part, or diffusers' class, is missing."""
    whole = (root / "model_index.json").is_file() and all((root / p).is_dir() for p in _PARTS)
    if not whole or find_spec("diffusers.pipelines.glm_image") is None:
        return None
    return GlmPainter(root, device)


@dataclass(frozen=True)
class GlmPainter:
    """The pipeline with its own steps and guidance; its weights are read for the first image."""

    root: Path
    device: torch.device
    cell: ClassVar[int] = 32

    def to(self, device: torch.device) -> GlmPainter:
        return replace(self, device=device)

    @property
    def bytes(self) -> int:
        """Memory of its weights, in the type that they are stored in."""
        parts = (self.root / part for part in _PARTS)
        return sum(file.stat().st_size for part in parts for file in part.glob("*.safetensors"))

    @cached_property
    def pipeline(self) -> GlmImagePipeline:
        """diffusers' pipeline without the autoregressive stage."""
        import transformers.utils.logging as theirs
        from diffusers import GlmImagePipeline
        from diffusers.utils import logging

        logging.disable_progress_bar()
        theirs.disable_progress_bar()
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        with warnings.catch_warnings():
            # later versions of diffusers call it dtype, which earlier ones do not know
            warnings.filterwarnings("ignore", "`torch_dtype` is deprecated", FutureWarning)
            pipeline = GlmImagePipeline.from_pretrained(
                self.root, vision_language_encoder=None, processor=None, torch_dtype=dtype
            )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline.to(self.device)

    def paint(self, codes: Tensor, size: tuple[int, int], text: str, seed: int) -> Tensor:
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
