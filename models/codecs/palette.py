"""A palette as an image tokenizer: a code is a colour, a token a pixel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.base import ImageGrid


@dataclass(frozen=True)
class Palette:
    """Turns pixels into the nearest colours, and codes into their colours."""

    codebook: Tensor  # (codes, channels) colours from 0 to 1; one channel: grey
    downsampling = 1  # pixels per token along one side

    def to(self, device: torch.device) -> Palette:
        return replace(self, codebook=self.codebook.to(device))

    def encode(self, images: Tensor) -> Tensor:
        """Return the codes (n, H * W) of RGB images (n, H, W, 3), uint8, in raster order."""
        pixels = images.to(self.codebook.device).float().div(255).flatten(1, 2)
        if self.codebook.shape[1] == 1:
            pixels = pixels.mean(-1, keepdim=True)
        return torch.cdist(pixels, self.codebook.expand(len(pixels), -1, -1)).argmin(-1)

    def decode(self, codes: Tensor, grid: tuple[int, int]) -> Tensor:
        """Codes (n, tokens) -> images (n, rows, columns, 3), uint8 on the CPU."""
        colours = (255 * self.codebook).round().clamp(0, 255).byte().cpu()
        return colours[codes.cpu()].expand(-1, -1, 3).unflatten(1, grid)

    def decoding_bytes(self, grid: ImageGrid) -> int:
        """Return 0: there is no network."""
        return 0
