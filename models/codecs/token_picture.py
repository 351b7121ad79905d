"""Codes as a picture, of models whose pixels another program makes of them."""

import torch
from torch import Tensor


class TokenPicture:
    """A pixel per token: its code is 256 red + green. It takes the place of an image tokenizer."""

    def to(self, device: torch.device) -> "TokenPicture":
        return self

    def decode(self, codes: Tensor, size: tuple[int, int]) -> Tensor:
        """Codes (images, tokens) -> pixels (images, rows, columns, 3), uint8 on the CPU.

        Of several grids the last one is shown; size: its rows and columns.
        """
        rows, columns = size
        codes = codes[:, -rows * columns :].unflatten(1, size).cpu()
        return torch.stack([codes // 256, codes % 256, torch.zeros_like(codes)], -1).byte()


def codes_of(pixels: Tensor) -> Tensor:
    """Pixels (..., 3), uint8 -> codes (...)."""
    return 256 * pixels[..., 0].long() + pixels[..., 1].long()
