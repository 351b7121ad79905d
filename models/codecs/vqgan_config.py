"""Sizes of a VQGAN from its files: vqgan.yaml (taming layout), or vq_config in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from configs.downloads import damage
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
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens of an image of the configured resolution."""
        side = self.resolution // self.downsampling
        return side, side


def read_config(path: Path) -> VqganConfig:
    """Read vqgan.yaml, or Emu3.5's config.yaml, where what `params` holds stands alone.

    `lossconfig` and `ckpt_path` are ignored. A ValueError names a file that is missing, damaged or
    of a network that is not built here.
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
        sizes = {name: given[name] for name in _JSON_SIZES}
        plain = VqganConfig(**{**sizes, "ch_mult": tuple(sizes["ch_mult"])})
        coarsest = [plain.grid[0]]
        require_values(ddconfig, {_ATTENTION: ([], coarsest, None)}, "ddconfig.", path.name)
        return replace(plain, coarse_attention=ddconfig.get(_ATTENTION) == coarsest)
    except KeyError as error:
        raise ValueError(
            f"{path}: the field {error} is missing; expected model.params.ddconfig"
        ) from error
    except Exception as error:  # yaml makes anything of a damaged file
        why = damage(path, error)
        raise ValueError(f"{path}: cannot be read as a VQGAN configuration: {why}") from error


def json_config(content: Mapping[str, Any], name: str) -> VqganConfig:
    """Return the VQGAN that `vq_config` of a config.json describes.

    Its names are transformers' or the older ones of vqgan.yaml. name: of the file, for errors: a
    ValueError if `vq_config` is missing or describes a network that is not built here.
    """
    given = content.get("vq_config")
    if not isinstance(given, dict):
        raise ValueError(f"{name}: vq_config is {given!r}; expected the sizes of the VQGAN")
    require_values(given, _JSON_BUILT, "vq_config.", name)
    sizes = {
        old: given.get(new, given.get(old, default)) for old, (new, default) in _JSON_SIZES.items()
    }
    try:
        return VqganConfig(**{**sizes, "ch_mult": tuple(sizes["ch_mult"])})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: vq_config: {error}") from error


def write_config(config: VqganConfig, path: Path) -> None:
    """Write vqgan.yaml for `read_config` and the public readers."""
    built = {name: allowed[0] for name, allowed in _BUILT.items()}
    built[_ATTENTION] = [config.grid[0]] if config.coarse_attention else []
    sizes = {name: getattr(config, name) for name in _JSON_SIZES}
    params = {name: sizes.pop(name) for name in ("embed_dim", "n_embed")}
    if config.num_groups == 32:  # as in every public file
        del sizes["num_groups"]
    ddconfig = {**built, **sizes, "ch_mult": list(config.ch_mult), "dropout": 0.0}
    params["ddconfig"] = ddconfig
    text = yaml.safe_dump({"model": {"params": params}}, sort_keys=False)
    replace_file(path, text.encode())
