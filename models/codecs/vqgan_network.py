"""The networks of a VQGAN (arXiv 2012.09841), with the names of taming-transformers' files.

Most public codecs have them: Chameleon's, LlamaGen's (attention also in the coarsest blocks),
Emu3.5's, and MoVQGAN's, whose decoder has spatial norms.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.codecs.vqgan import VqganConfig

EPSILON = 1e-6  # of all norms
NormOf = Callable[[int], nn.Module]  # channels -> norm


class Conv2d(nn.Conv2d):
    """A convolution that draws no weights where they have no memory: that takes longer."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class SpatialNorm(nn.Module):
    """A norm that the latents scale and shift (arXiv 2209.09002)."""

    def __init__(self, config: VqganConfig, channels: int):
        super().__init__()
        self.norm_layer = nn.GroupNorm(config.num_groups, channels, EPSILON)
        self.conv_y = Conv2d(config.embed_dim, channels, 1)
        self.conv_b = Conv2d(config.embed_dim, channels, 1)

    def forward(self, hidden: Tensor, latents: Tensor) -> Tensor:
        """(n, channels, height, width); latents: (n, embed_dim, rows, columns)."""
        latents = F.interpolate(latents, hidden.shape[2:])
        return self.norm_layer(hidden) * self.conv_y(latents) + self.conv_b(latents)


class Norm(nn.GroupNorm):
    """A norm that does not read the latents."""

    def forward(self, input: Tensor, latents: Tensor | None = None) -> Tensor:
        return super().forward(input)


class ResidualBlock(nn.Module):
    """Two convolutions of 3 x 3 beside a shortcut."""

    def __init__(self, channels: int, out: int, norm: NormOf):
        super().__init__()
        self.norm1 = norm(channels)
        self.conv1 = Conv2d(channels, out, 3, padding=1)
        self.norm2 = norm(out)
        self.conv2 = Conv2d(out, out, 3, padding=1)
        self.nin_shortcut = nn.Identity() if channels == out else Conv2d(channels, out, 1)

    def forward(self, hidden: Tensor, latents: Tensor | None) -> Tensor:
        """(n, channels, height, width) -> (n, out, height, width)."""
        inner = self.conv1(F.silu(self.norm1(hidden, latents)))
        inner = self.conv2(F.silu(self.norm2(inner, latents)))
        return self.nin_shortcut(hidden) + inner


class Attention(nn.Module):
    """Attention of one head among all places."""

    def __init__(self, channels: int, norm: NormOf):
        super().__init__()
        self.norm = norm(channels)
        self.q, self.k, self.v, self.proj_out = (Conv2d(channels, channels, 1) for _ in "qkvo")

    def forward(self, hidden: Tensor, latents: Tensor | None) -> Tensor:
        """(n, channels, height, width) -> the same."""
        # contiguous: rounds as the public implementations, which normalise (n, channels, places)
        normed = self.norm(hidden.contiguous(), latents)
        places = normed.flatten(2).transpose(1, 2)  # (n, places, channels)
        q, k, v = (_at_each(layer, places)[:, None] for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v)[:, 0]
        return hidden + _at_each(self.proj_out, mixed).transpose(1, 2).view_as(hidden)


def _at_each(layer: nn.Conv2d, places: Tensor) -> Tensor:
    """Apply a convolution of 1 x 1 to places (n, places, channels)."""
    return F.linear(places, layer.weight.flatten(1), layer.bias)


class Middle(nn.Module):
    """The blocks at the coarsest level, between encoder or decoder and the latents."""

    def __init__(self, channels: int, norm: NormOf):
        super().__init__()
        self.block_1 = ResidualBlock(channels, channels, norm)
        self.attn_1 = Attention(channels, norm)
        self.block_2 = ResidualBlock(channels, channels, norm)

    def forward(self, hidden: Tensor, latents: Tensor | None) -> Tensor:
        for part in (self.block_1, self.attn_1, self.block_2):
            hidden = part(hidden, latents)
        return hidden


class Level(nn.Module):
    """The blocks of one resolution."""

    def __init__(self, channels: int, out: int, blocks: int, attends: bool, norm: NormOf):
        super().__init__()
        widths = [channels] + [out] * (blocks - 1)
        self.block = nn.ModuleList(ResidualBlock(w, out, norm) for w in widths)
        self.attn = nn.ModuleList(Attention(out, norm) for _ in widths if attends)

    def forward(self, hidden: Tensor, latents: Tensor | None) -> Tensor:
        for number, block in enumerate(self.block):
            hidden = block(hidden, latents)
            if self.attn:
                hidden = self.attn[number](hidden, latents)
        return hidden


class Encoder(nn.Module):
    """Pixels (n, 3, height, width) -> (n, z_channels, rows, columns)."""

    def __init__(self, config: VqganConfig):
        super().__init__()
        widths = [config.ch * factor for factor in config.ch_mult]
        norm = partial(Norm, config.num_groups, eps=EPSILON)
        self.conv_in = Conv2d(3, config.ch, 3, padding=1)
        self.down, blocks = nn.ModuleList(), config.num_res_blocks
        for channels, out in zip([config.ch, *widths], widths, strict=False):
            coarsest = len(self.down) == len(widths) - 1
            attends = coarsest and config.coarse_attention
            level = Level(channels, out, blocks, attends, norm)
            if not coarsest:
                # one row and column more, to the right and below; `conv` is a part of public keys
                convolution = Conv2d(out, out, 3, stride=2)
                parts = {"pad": nn.ZeroPad2d((0, 1, 0, 1)), "conv": convolution}
                level.downsample = nn.Sequential(OrderedDict(parts))
            self.down.append(level)
        self.mid = Middle(widths[-1], norm)
        self.norm_out = norm(widths[-1])
        self.conv_out = Conv2d(widths[-1], config.z_channels, 3, padding=1)

    def forward(self, pixels: Tensor) -> Tensor:
        hidden = self.conv_in(pixels)
        for level in self.down:
            hidden = level(hidden, None)
            if level is not self.down[-1]:
                hidden = level.downsample(hidden)
        hidden = self.mid(hidden, None)
        return self.conv_out(F.silu(self.norm_out(hidden, None)))


class Decoder(nn.Module):
    """(n, z_channels, rows, columns) -> pixels (n, 3, height, width)."""

    def __init__(self, config: VqganConfig):
        super().__init__()
        norm: NormOf = partial(Norm, config.num_groups, eps=EPSILON)
        if config.spatial_norm:
            norm = partial(SpatialNorm, config)
        widths = [config.ch * factor for factor in config.ch_mult]  # of the finest level first
        self.conv_in = Conv2d(config.z_channels, widths[-1], 3, padding=1)
        self.mid = Middle(widths[-1], norm)
        self.up, blocks = nn.ModuleList(), config.num_res_blocks + 1
        for channels, out in zip([*widths[1:], widths[-1]], widths, strict=True):
            attends = len(self.up) == len(widths) - 1 and config.coarse_attention
            level = Level(channels, out, blocks, attends, norm)
            if len(self.up):
                convolution = Conv2d(out, out, 3, padding=1)
                parts = {"twice": nn.Upsample(scale_factor=2.0), "conv": convolution}
                level.upsample = nn.Sequential(OrderedDict(parts))
            self.up.append(level)
        self.norm_out = norm(widths[0])
        self.conv_out = Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, hidden: Tensor, latents: Tensor | None = None) -> Tensor:
        """latents: (n, embed_dim, rows, columns) of the codes, which spatial norms read."""
        hidden = self.mid(self.conv_in(hidden), latents)
        for level in reversed(self.up):
            hidden = level(hidden, latents)
            if level is not self.up[0]:
                hidden = level.upsample(hidden)
        return self.conv_out(F.silu(self.norm_out(hidden, latents)))


class Vqgan(nn.Module):
    """Encoder, codebook and decoder, with fresh weights."""

    def __init__(self, config: VqganConfig):
        super().__init__()
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        codes, width = config.n_embed, config.embed_dim
        codebook = nn.Embedding(codes, width, _weight=torch.empty(codes, width))
        nn.init.uniform_(codebook.weight, -1 / codes, 1 / codes)
        self.quantize = nn.ModuleDict({"embedding": codebook})
        self.quant_conv = Conv2d(config.z_channels, config.embed_dim, 1)
        self.post_quant_conv = Conv2d(config.embed_dim, config.z_channels, 1)
