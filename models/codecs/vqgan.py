"""VQGANs (arXiv 2012.09841): pixels <-> codes.

Their sizes are in vqgan.yaml (taming layout), or in `vq_config` of config.json.
"""

import math
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from configs.downloads import damage
from models.base import ImageGrid
from models.codecs.peak import META_DEVICE, Peak
from models.files.entries import is_size, require_values
from support.durable import replace_file

_ATTENTION = "attn_resolutions"  # those of the levels whose blocks attend
# Entries of networks that are built here; None: transformers' default.
_BUILT = {
    "double_z": (False, None),
    "in_channels": (3, None),
    "out_ch": (3, None),
    _ATTENTION: ([], None),
    "attn_type": ("vanilla", None),
}
# our name (the older name in files) -> name in `vq_config` of config.json, default of transformers
_JSON_SIZES = {
    "ch": ("base_channels", 128),
    "ch_mult": ("channel_multiplier", (1, 1, 2, 2, 4)),
    "num_res_blocks": ("num_res_blocks", 2),
    "z_channels": ("latent_channels", 256),
    "embed_dim": ("embed_dim", 256),
    "n_embed": ("num_embeddings", 8192),
    "resolution": ("resolution", 512),
    "num_groups": ("num_groups", 32),
}
_JSON_BUILT = _BUILT | {"double_latent": (False, None)}


@dataclass(frozen=True)
class VqganConfig:
    """Sizes of a VQGAN, named as in the `ddconfig` of vqgan.yaml."""

    ch: int
    ch_mult: tuple[int, ...]
    num_res_blocks: int
    z_channels: int
    embed_dim: int
    n_embed: int
    resolution: int
    num_groups: int = 32  # of the GroupNorms: 32 in every public file, where the key is absent
    coarse_attention: bool = False  # of the coarsest blocks, not only the middle (LlamaGen)
    spatial_norm: bool = False  # the latents scale and shift the decoder's norms (MoVQGAN)

    def __post_init__(self) -> None:
        numbers = [(name, getattr(self, name)) for name in _JSON_SIZES if name != "ch_mult"]
        for name, value in [*numbers, *(("ch_mult", factor) for factor in self.ch_mult)]:
            if not is_size(value):
                raise ValueError(f"{name}: found {value!r}, allowed are whole numbers from 1")
        if not self.ch_mult or any(self.ch * factor % self.num_groups for factor in self.ch_mult):
            stated = f"found {list(self.ch_mult)}; ch = {self.ch} times each factor"
            raise ValueError(f"ch_mult: {stated} must be a multiple of {self.num_groups}")

    @property
    def downsampling(self) -> int:
        """Pixels per token along one side."""
        return 2 ** (len(self.ch_mult) - 1)

    @property
    def side(self) -> int:
        """Tokens per row and column of an image of the configured resolution."""
        return self.resolution // self.downsampling


def read_config(path: Path) -> VqganConfig:
    """Read vqgan.yaml, or Emu3.5's config.yaml, where what `params` holds stands alone.

    `lossconfig` and `ckpt_path` are ignored.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        params = content if "ddconfig" in content else content["model"]["params"]
        ddconfig = params["ddconfig"]
        # Which resolution is the coarsest is known only once the sizes are read.
        built = {name: values for name, values in _BUILT.items() if name != _ATTENTION}
        require_values(ddconfig, built, "ddconfig.", path.name)
        # taming keeps embed_dim and n_embed beside ddconfig.
        given = {"num_groups": 32} | ddconfig | params
        sizes: dict[str, Any] = {name: given[name] for name in _JSON_SIZES}
        plain = VqganConfig(**{**sizes, "ch_mult": tuple(sizes["ch_mult"])})
        coarsest = [plain.side]
        require_values(ddconfig, {_ATTENTION: ([], coarsest, None)}, "ddconfig.", path.name)
        return replace(plain, coarse_attention=ddconfig.get(_ATTENTION) == coarsest)
    except KeyError as error:
        raise ValueError(
            f"{path}: the field {error} is missing; expected model.params.ddconfig"
        ) from error
    except Exception as error:  # yaml makes anything of a damaged file
        why = damage(path, error)
        raise ValueError(f"{path}: cannot be read as a VQGAN configuration: {why}") from error


def json_config(given: object, name: str) -> VqganConfig:
    """Return the VQGAN that `vq_config` of a config.json describes.

    Its names are transformers' or the older ones of vqgan.yaml. name: of the file, for errors.
    """
    if not isinstance(given, dict):
        raise ValueError(f"{name}: vq_config is {given!r}; expected the sizes of the VQGAN")
    require_values(given, _JSON_BUILT, "vq_config.", name)
    sizes: dict[str, Any] = {
        old: given.get(new, given.get(old, default)) for old, (new, default) in _JSON_SIZES.items()
    }
    try:
        return VqganConfig(**{**sizes, "ch_mult": tuple(sizes["ch_mult"])})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: vq_config: {error}") from error


def write_config(config: VqganConfig, path: Path) -> None:
    """Write vqgan.yaml for `read_config` and the public readers."""
    built = {name: allowed[0] for name, allowed in _BUILT.items()}
    built[_ATTENTION] = [config.side] if config.coarse_attention else []
    sizes = {name: getattr(config, name) for name in _JSON_SIZES}
    params = {name: sizes.pop(name) for name in ("embed_dim", "n_embed")}
    if config.num_groups == 32:  # as in every public file
        del sizes["num_groups"]
    ddconfig = {**built, **sizes, "ch_mult": list(config.ch_mult), "dropout": 0.0}
    params["ddconfig"] = ddconfig
    text = yaml.safe_dump({"model": {"params": params}}, sort_keys=False)
    replace_file(path, text.encode())


def finite(values: Tensor) -> Tensor:
    """Return numbers of an image codec; a FloatingPointError for NaN, which has no colour."""
    if not values.is_meta and not bool(values.isfinite().all()):
        raise FloatingPointError(
            "the image codec: expected finite numbers, got NaN or infinity. Check its weights"
        )
    return values


class ImageTokenizer:
    """Pixels <-> codes in raster order, by a `Vqgan` or a network like it, in fp32."""

    def __init__(self, model: nn.Module, config: VqganConfig, rounding: float = 0.0):
        self.model = model.eval().requires_grad_(False)
        # Added before values are truncated: 0 as public readers of Chameleon and Janus do, or 0.5.
        self.config, self.rounding = config, rounding

    def to(self, device: torch.device) -> "ImageTokenizer":
        return type(self)(self.model.to(device), self.config, self.rounding)

    @property
    def downsampling(self) -> int:
        return self.config.downsampling

    @property
    def codebook(self) -> Tensor:
        """Latents of the codes, (n_embed, embed_dim)."""
        return self.model.quantize.embedding.weight

    @torch.inference_mode()
    def encode(
        self, images: Tensor, chunk: int = 1, precision: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the codes (n, h*w), int64, of images (n, H, W, 3), uint8.

        chunk: images per forward pass; with 1, an image's codes do not depend on the others.
        precision: bfloat16 is faster and changes a few codes; distances stay in fp32.
        """
        assert images.dtype == torch.uint8 and images.ndim == 4 and images.shape[3] == 3
        assert not any(side % self.downsampling for side in images.shape[1:3])
        codes = [self._nearest(self._latents(batch, precision)) for batch in images.split(chunk)]
        return torch.cat(codes).cpu()

    def _latents(self, images: Tensor, precision: torch.dtype) -> Tensor:
        """Return the encoder's outputs (n, h * w, embed_dim) for pixels (n, H, W, 3)."""
        device = self.codebook.device
        pixels = images.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1.0
        # Not enabled for fp32, which autocast on CPUs does not support: torch would warn.
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            return finite(self._encode(pixels).float())

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
        """Decode codes (n, tokens), image by image, to images (n, H, W, 3), uint8 on the CPU."""
        tokens = codes.shape[1]
        rows, columns = grid or (math.isqrt(tokens), math.isqrt(tokens))
        assert rows * columns == tokens
        scale = self.downsampling
        images = torch.empty((len(codes), rows * scale, columns * scale, 3), dtype=torch.uint8)
        for image, row in zip(images, codes.to(self.codebook.device, torch.int64), strict=True):
            image.copy_(self.decode_one(row.view(rows, columns)))
        return images

    def decode_one(self, codes: Tensor) -> Tensor:
        """Decode codes (rows, columns) to an image (H, W, 3), uint8."""
        # channels first: (1, embed_dim, rows, columns)
        latents = self.codebook[codes].permute(2, 0, 1).unsqueeze(0)
        latents = latents.contiguous(memory_format=torch.channels_last)
        # MoVQGAN's norms read the codes' own latents, without the convolution after them.
        conditions = (latents,) if self.config.spatial_norm else ()
        return self._to_bytes(
            self.model.decoder(self.model.post_quant_conv(latents), *conditions)[0]
        )

    @torch.inference_mode()
    def decoding_bytes(self, grid: ImageGrid) -> int:
        """Return the most bytes that decoding an image takes beside the weights."""
        shapes = self if self.codebook.is_meta else deepcopy(self).to(META_DEVICE)
        with Peak() as peak:
            codes = torch.zeros(grid.rows, grid.columns, dtype=torch.long, device=META_DEVICE)
            shapes.decode_one(codes)
        return peak.most

    def _to_bytes(self, output: Tensor) -> Tensor:
        """(3, height, width) from -1 to 1 -> (height, width, 3) uint8."""
        pixels = (finite(output.float()).clamp(-1, 1) + 1) / 2 * 255 + self.rounding
        return pixels.to(torch.uint8).permute(1, 2, 0)  # truncates


class IBQ(ImageTokenizer):
    """Emu3.5's VQGAN (IBQ, arXiv 2412.02692): a code is the latent with the greatest product."""

    def _nearest(self, latents: Tensor) -> Tensor:
        # A part of an image at a time: the scores of all 4,096 positions would take 2 GiB.
        scores = (chunk @ self.codebook.T for chunk in latents.split(256, 1))
        return torch.cat([chunk.argmax(-1) for chunk in scores], 1)
