"""Sizes of a VQGAN from its files: vqgan.yaml (taming layout), or vq_config in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from configs.downloads import damage
from support.durable import replace_file

_FIXED = {
    "double_z": False,
    "in_channels": 3,
    "out_ch": 3,
    "attn_resolutions": [],
    "attn_type": "vanilla",
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
_JSON_FIXED = {
    "double_latent": False,
    "in_channels": 3,
    "attn_resolutions": [],
    "attn_type": "vanilla",
}


@dataclass(frozen=True)
class VqganConfig:
    """Sizes of a VQGAN, named as in the `ddconfig` of vqgan.yaml.

    num_groups: groups of the GroupNorms: 32 in every public file, where the key is absent.
    coarse_attention: the blocks of the coarsest level attend (LlamaGen), not only the middle ones.
    """

    ch: int
    ch_mult: tuple[int, ...]
    num_res_blocks: int
    z_channels: int
    embed_dim: int
    n_embed: int
    resolution: int
    num_groups: int = 32
    coarse_attention: bool = False

    def __post_init__(self) -> None:
        numbers = {
            name: value
            for name, value in vars(self).items()
            if name not in ("ch_mult", "coarse_attention")
        }
        for name, value in [*numbers.items(), *(("ch_mult", factor) for factor in self.ch_mult)]:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
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
    """Read vqgan.yaml; `lossconfig` and `ckpt_path` are ignored.

    Raises:
        ValueError: if the file is missing or damaged, lacks a field, or describes a network that is
            not built here.
    """
    try:
        params = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]["params"]
        ddconfig = params["ddconfig"]
        for name, allowed in _FIXED.items():
            if ddconfig.get(name, allowed) != allowed:
                raise ValueError(
                    f"ddconfig.{name}: found {ddconfig[name]!r}, allowed is {allowed!r}"
                )
        names = ("ch", "num_res_blocks", "z_channels", "resolution")
        sizes = {name: ddconfig[name] for name in names} | {
            name: params[name] for name in ("embed_dim", "n_embed")
        }
        return VqganConfig(
            ch_mult=tuple(ddconfig["ch_mult"]), num_groups=ddconfig.get("num_groups", 32), **sizes
        )
    except KeyError as error:
        raise ValueError(
            f"{path}: the field {error} is missing; expected model.params.ddconfig"
        ) from error
    except (
        OSError,
        yaml.YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ValueError(
            f"{path}: cannot be read as a VQGAN configuration: {damage(path, error)}"
        ) from error


def json_config(content: Mapping[str, Any], name: str) -> VqganConfig:
    """Return the VQGAN that `vq_config` of a config.json describes.

    Its names are transformers' or the older ones of vqgan.yaml.

    Args:
        content: the parsed config.json.
        name: of the file, for errors.

    Raises:
        ValueError: if `vq_config` is missing or describes a network that is not built here.
    """
    given = content.get("vq_config")
    if not isinstance(given, dict):
        raise ValueError(f"{name}: vq_config is {given!r}; expected the sizes of the VQGAN")
    for entry, allowed in (*_JSON_FIXED.items(), *_FIXED.items()):
        if given.get(entry) not in (None, allowed):
            raise ValueError(f"{name}: vq_config.{entry} is {given[entry]!r}; allowed: {allowed!r}")
    sizes = {
        old: given.get(new, given.get(old, default)) for old, (new, default) in _JSON_SIZES.items()
    }
    try:
        return VqganConfig(**{**sizes, "ch_mult": tuple(sizes["ch_mult"])})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: vq_config: {error}") from error


def write_config(config: VqganConfig, path: Path) -> None:
    """Write vqgan.yaml for `read_config` and the public readers.

    Raises:
        ValueError: for attention at the coarsest level, which the file cannot describe.
    """
    if config.coarse_attention:
        raise ValueError(f"{path}: cannot describe attention at the coarsest level")
    ddconfig: dict[str, Any] = {
        **_FIXED,
        "ch": config.ch,
        "ch_mult": list(config.ch_mult),
        "num_res_blocks": config.num_res_blocks,
        "z_channels": config.z_channels,
        "resolution": config.resolution,
        "dropout": 0.0,
    }
    if config.num_groups != 32:
        ddconfig["num_groups"] = config.num_groups
    params = {"embed_dim": config.embed_dim, "n_embed": config.n_embed, "ddconfig": ddconfig}
    text = yaml.safe_dump({"model": {"params": params}}, sort_keys=False)
    replace_file(path, text.encode())
