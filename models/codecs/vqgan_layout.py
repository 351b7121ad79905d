"""The public keys of VQGAN weights, and their map onto diffusers' `VQModel`.

Most files have the keys of taming-transformers (`taming_name`), LlamaGen's have keys of its own
(`llamagen_name`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from statistics import multimode
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.codecs.vqgan_config import VqganConfig
from models.files.gather import renamed
from models.files.network import Network, Slot
from support.json_files import shortened

if TYPE_CHECKING:
    from diffusers import VQModel

_RENAMES = (
    (r"^(\w+)\.mid_block\.resnets\.0\.", r"\1.mid.block_1."),
    (r"^(\w+)\.mid_block\.resnets\.1\.", r"\1.mid.block_2."),
    (r"^(\w+)\.mid_block\.attentions\.0\.", r"\1.mid.attn_1."),
    (r"\.(down|up)_blocks\.(\d+)\.attentions\.", r".\1.\2.attn."),
    (r"\.(?:group|spatial)_norm\.", ".norm."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".proj_out."),
    (r"\.(down|up)_blocks\.(\d+)\.resnets\.", r".\1.\2.block."),
    (r"\.(down|up)_blocks\.(\d+)\.\1samplers\.0\.", r".\1.\2.\1sample."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
    (r"\.conv_norm_out\.", ".norm_out."),
)
# taming-transformers' keys -> LlamaGen's, which stay as they are
LLAMAGEN_RENAMES = (
    (r"\.(down|up)\.(\d+)\.(?=block|attn|downsample|upsample)", r".conv_blocks.\2."),
    (r"\.block\.", ".res."),
    (r"\.mid\.block_1\.", ".mid.0."),
    (r"\.mid\.attn_1\.", ".mid.1."),
    (r"\.mid\.block_2\.", ".mid.2."),
)
CODEBOOK = "quantize.embedding.weight"
# entry of the configuration -> the weight that has this size, and on which axis
_SHAPED = {
    "ch": ("encoder.conv_in.weight", 0),
    "z_channels": ("post_quant_conv.weight", 0),
    "embed_dim": (CODEBOOK, 1),
    "n_embed": (CODEBOOK, 0),
}
_BLOCK = re.compile(r"encoder\.conv_blocks\.(?P<level>\d+)\.res\.(?P<block>\d+)\.conv\d\.weight")


def build_vqmodel(config: VqganConfig) -> VQModel:
    """Return the diffusers network of these sizes, with fresh weights."""
    from diffusers import VQModel  # takes seconds to load; decoding to codes needs none

    finer, coarse = len(config.ch_mult) - 1, "Attn" if config.coarse_attention else ""
    return VQModel(
        block_out_channels=tuple(config.ch * factor for factor in config.ch_mult),
        down_block_types=("DownEncoderBlock2D",) * finer + (f"{coarse}DownEncoderBlock2D",),
        up_block_types=(f"{coarse}UpDecoderBlock2D",) + ("UpDecoderBlock2D",) * finer,
        layers_per_block=config.num_res_blocks,
        latent_channels=config.z_channels,
        num_vq_embeddings=config.n_embed,
        vq_embed_dim=config.embed_dim,
        norm_num_groups=config.num_groups,
        norm_type="spatial" if config.spatial_norm else "group",
    )


def vqgan_network(
    config: VqganConfig, shapes: Mapping[str, tuple[int, ...]], prefix: str, llamagen: bool
) -> Network:
    """Return the network of these sizes on the meta device, with its public keys.

    Args:
        config: sizes as the configuration says.
        shapes: of the stored weights, by public key without the prefix.
        prefix: of the keys.
        llamagen: keys are LlamaGen's, not those of the taming layout.

    Raises:
        ValueError: naming every size that the weights contradict.
    """
    # before the network is built, which with wrong sizes takes minutes or overflows
    faults = [
        f"{entry} is {shortened(getattr(config, entry))}, the weights hold {size}"
        for entry, size in stored_sizes(shapes).items()
        if getattr(config, entry) != size
    ]
    if faults:
        raise ValueError(f"the weights do not fit the configuration: {'; '.join(faults)}")
    with torch.device("meta"):
        model = build_vqmodel(config)
    levels = len(config.ch_mult)
    keys = {
        prefix + (llamagen_name(name) if llamagen else taming_name(name, levels)): Slot(name)
        for name in model.state_dict()
    }
    training = tuple(prefix + name for name in ("loss.", "ema_", "quantize.codebook_used"))
    renames = LLAMAGEN_RENAMES if llamagen else ()
    return Network(model, keys, ignored=training, renames=renames, prefix=prefix)


def stored_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return, by entry of `VqganConfig`, the sizes that stored weights of any layout tell.

    Single tensors of a wrong shape tell none, nor do weights without an encoder.
    """
    shapes = {renamed(key, LLAMAGEN_RENAMES): shape for key, shape in shapes.items()}
    stored: dict[str, Any] = {
        entry: shapes[key][axis]
        for entry, (key, axis) in _SHAPED.items()
        if axis < len(shapes.get(key, ()))
    }
    levels: dict[int, list[int]] = {}  # level -> widths of its convolutions
    blocks = set()
    for key, shape in shapes.items():
        if match := _BLOCK.match(key):
            levels.setdefault(int(match["level"]), []).append(shape[0] if shape else 0)
            blocks.add(match["block"])
    widths = [multimode(levels[level]) for level in sorted(levels)]
    if levels:
        stored["num_res_blocks"] = len(blocks)
        if "ch" in stored and all(len(found) == 1 for found in widths):
            stored["ch_mult"] = tuple(width // stored["ch"] for (width,) in widths)
    return stored


def config_of(shapes: Mapping[str, tuple[int, ...]], side: int, **more: bool) -> VqganConfig:
    """Return the sizes of the network that has these weights, of files without a configuration.

    Args:
        shapes: of the stored weights, by public key.
        side: rows and columns of codes of an image.
        more: other entries of the configuration.

    Raises:
        ValueError: if a weight that has one of the sizes is missing, or the sizes fit no VQGAN.
    """
    stored = {"num_res_blocks": 0, "ch_mult": ()} | stored_sizes(shapes)
    if missing := [key for entry, (key, _) in _SHAPED.items() if entry not in stored]:
        raise ValueError(f"missing key {missing[0]}")
    resolution = side * 2 ** max(0, len(stored["ch_mult"]) - 1)
    return VqganConfig(**stored, resolution=resolution, coarse_attention=True, **more)


def taming_name(name: str, levels: int) -> str:
    """Return the public key for a diffusers key; taming counts decoder levels from the finest."""
    name = renamed(name, _RENAMES)
    return re.sub(
        r"^decoder\.up\.(\d+)", lambda match: f"decoder.up.{levels - 1 - int(match[1])}", name
    )


def llamagen_name(name: str) -> str:
    """Return LlamaGen's key for a diffusers key; both count levels in the order of execution."""
    return renamed(name, (*_RENAMES, *LLAMAGEN_RENAMES))


def to_taming(state: Mapping[str, Tensor], levels: int) -> dict[str, Tensor]:
    """Rename a diffusers state dict to the public layout."""
    return to_public(state, partial(taming_name, levels=levels))


def to_public(state: Mapping[str, Tensor], name_of: Callable[[str], str]) -> dict[str, Tensor]:
    """Rename a diffusers state dict; attention matrices become 1 x 1 convolutions."""
    matrix = {name: ".attentions." in name and value.ndim == 2 for name, value in state.items()}
    return {
        name_of(name): value[:, :, None, None] if matrix[name] else value
        for name, value in state.items()
    }
