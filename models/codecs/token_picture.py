"""Codes as a picture, of models whose pixels another program makes of them."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


class Painter(Protocol):
    """What makes a picture of an image's codes and its prompt.

    cell: pixels of a token along one side.
    """

    cell: int

    def to(self, device: torch.device) -> "Painter":
        """Return the same painter on another device."""

    def paint(self, codes: Tensor, size: tuple[int, int], text: str, seed: int) -> Tensor:
        """Codes (tokens,) -> pixels (height, width, 3), uint8 on the CPU.

        size: rows and columns of the codes. seed: of the painter's own noise.
        """


@dataclass(frozen=True)
class TokenPicture:
    """A pixel per token: its code is 256 red + green. It takes the place of an image tokenizer.

    painter: of finished images; None: they stay tokens.
    """

    painter: Painter | None = None

    def to(self, device: torch.device) -> "TokenPicture":
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
