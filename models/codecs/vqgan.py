"""VQGANs (arXiv 2012.09841): pixels <-> codes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.codecs.vqgan_config import VqganConfig

if TYPE_CHECKING:
    from diffusers import VQModel


class ImageTokenizer:
    """Pixels <-> codes. Codes of an image are in raster order; the network runs in fp32.

    Args:
        model: network with loaded weights.
        config: its sizes.
        rounding: added before pixel values are truncated: 0 as public readers of Chameleon and
            Janus do, or 0.5.
        source: where the weights are, in words.
    """

    def __init__(
        self, model: VQModel, config: VqganConfig, rounding: float = 0.0, source: str = ""
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.config, self.rounding, self.source = config, rounding, source

    def to(self, device: torch.device) -> ImageTokenizer:
        """Return the same network on another device."""
        return type(self)(self.model.to(device), self.config, self.rounding, self.source)

    @property
    def downsampling(self) -> int:
        """Pixels per token along one side."""
        return self.config.downsampling

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens of an image of the configured resolution."""
        return self.config.grid

    @property
    def codebook(self) -> Tensor:
        """Latents of the codes, (n_embed, embed_dim)."""
        return self.model.quantize.embedding.weight

    @torch.inference_mode()
    def encode(
        self, images: Tensor, chunk: int = 1, precision: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the codes (n, h*w), int64, of images (n, H, W, 3), uint8.

        Args:
            images: H and W are multiples of `downsampling`.
            chunk: images per forward pass; with 1, an image's codes do not depend on the others.
            precision: bfloat16 is faster and changes a few codes; distances stay in fp32.
        """
        assert images.dtype == torch.uint8 and images.ndim == 4 and images.shape[3] == 3
        assert not any(side % self.downsampling for side in images.shape[1:3])
        codes = [self._nearest(self._latents(batch, precision)) for batch in images.split(chunk)]
        sides = math.prod(side // self.downsampling for side in images.shape[1:3])
        return torch.cat(codes).cpu() if codes else torch.empty((0, sides), dtype=torch.int64)

    def _latents(self, images: Tensor, precision: torch.dtype) -> Tensor:
        """Return the encoder's outputs (n, h * w, embed_dim) for pixels (n, H, W, 3)."""
        device = self.codebook.device
        pixels = images.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1.0
        # Not enabled for fp32, which autocast on CPUs does not support: torch would warn.
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            return self._encode(pixels).float()

    def _encode(self, pixels: Tensor) -> Tensor:
        """Return the encoder's outputs for pixels (n, 3, H, W) from -1 to 1."""
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        hidden = self.model.quant_conv(self.model.encoder(pixels))
        return hidden.permute(0, 2, 3, 1).flatten(1, 2)

    def _nearest(self, latents: Tensor) -> Tensor:
        """Return the codes (n, h * w) of the encoder's outputs: the nearest latents."""
        # a latent's own square is the same for every code
        return (self.codebook.square().sum(1) - 2.0 * latents @ self.codebook.T).argmin(-1)

    @torch.inference_mode()
    def decode(self, codes: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Decode codes (n, tokens), image by image, to images (n, H, W, 3), uint8 on the CPU.

        grid: rows and columns of tokens; without it the image is square.
        """
        tokens = codes.shape[1]
        rows, columns = grid or (math.isqrt(tokens), math.isqrt(tokens))
        assert rows * columns == tokens
        scale = self.downsampling
        images = torch.empty((len(codes), rows * scale, columns * scale, 3), dtype=torch.uint8)
        for image, row in zip(images, codes.to(self.codebook.device, torch.int64), strict=True):
            image.copy_(self._decode(row.view(rows, columns)))
        return images

    def _decode(self, codes: Tensor) -> Tensor:
        # one image, channels first: (1, embed_dim, rows, columns)
        latents = self.codebook[codes].permute(2, 0, 1).unsqueeze(0)
        latents = latents.contiguous(memory_format=torch.channels_last)
        # MoVQGAN's norms read the codes' own latents, without the convolution after them.
        conditions = (latents,) if self.config.spatial_norm else ()
        return self._to_bytes(
            self.model.decoder(self.model.post_quant_conv(latents), *conditions)[0]
        )

    def _to_bytes(self, output: Tensor) -> Tensor:
        """(3, height, width) from -1 to 1 -> (height, width, 3) uint8."""
        pixels = (output.float().clamp(-1, 1) + 1) / 2 * 255 + self.rounding
        return pixels.to(torch.uint8).permute(1, 2, 0)  # truncates


class IBQ(ImageTokenizer):
    """Emu3.5's VQGAN (IBQ, arXiv 2412.02692): a code is the latent of the greatest inner product.

    A part of an image is scored at a time: all 4,096 positions would take 2 GiB.
    """

    def _nearest(self, latents: Tensor) -> Tensor:
        scores = (chunk @ self.codebook.T for chunk in latents.split(256, 1))
        return torch.cat([chunk.argmax(-1) for chunk in scores], 1)
