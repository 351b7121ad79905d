"""The public VQGAN weights (taming layout), and the key map onto diffusers' `VQModel`.

Keys in the files are those of taming-transformers; `taming_name` maps diffusers' keys to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.codecs.vqgan_config import VqganConfig
from models.files.gather import renamed, shape_faults, shown
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
# entry of the configuration -> the weight that has this size, and on which axis
_SHAPED = {
    "ch": ("encoder.conv_in.weight", 0),
    "z_channels": ("post_quant_conv.weight", 0),
    "embed_dim": ("quantize.embedding.weight", 1),
    "n_embed": ("quantize.embedding.weight", 0),
}
_BLOCK = re.compile(r"encoder\.down\.(?P<level>\d+)\.block\.(?P<block>\d+)\.conv\d\.weight")


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


def build_fitting(
    config: VqganConfig,
    shapes: Mapping[str, tuple[int, ...]],
    name_of: Callable[[str], str] | None = None,
) -> VQModel:
    """Return the network of these sizes on the meta device, once the stored weights fit it.

    Args:
        config: sizes as the configuration says.
        shapes: of the stored weights, by public key.
        name_of: diffusers key -> public key; None: the taming layout.

    Raises:
        ValueError: naming every size that the weights contradict, or every key that does not fit.
    """
    # before the network is built, which with wrong sizes takes minutes
    if faults := size_faults(config, shapes):
        raise ValueError(f"the weights do not fit the configuration: {'; '.join(faults)}")
    with torch.device("meta"):
        model = build_vqmodel(config)
    public = to_public(model.state_dict(), name_of or _taming(config))
    expected = {name: tuple(value.shape) for name, value in public.items()}
    if faults := shape_faults(shapes, expected):
        raise ValueError(f"the weights do not fit the configuration: {shown(faults)}")
    return model


def size_faults(config: VqganConfig, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return, in words, every size of a VQGAN that its stored weights contradict.

    They are compared before the network is built, which for some sizes takes minutes or overflows.
    Weights without an encoder contradict nothing here; their keys do not fit.
    """
    stored: dict[str, Any] = {
        entry: shapes[key][axis]
        for entry, (key, axis) in _SHAPED.items()
        if axis < len(shapes.get(key, ()))
    }
    levels: dict[int, set[int]] = {}  # level -> widths of its convolutions
    blocks = set()
    for key, shape in shapes.items():
        if match := _BLOCK.match(key):
            levels.setdefault(int(match["level"]), set()).add(shape[0] if shape else 0)
            blocks.add(match["block"])
    if levels:
        stored["num_res_blocks"] = len(blocks)
        if all(len(widths) == 1 for widths in levels.values()):
            ch = stored.get("ch", config.ch)
            stored["ch_mult"] = tuple(levels[level].pop() // ch for level in sorted(levels))
    return [
        f"{entry} is {shortened(getattr(config, entry))}, the weights hold {size}"
        for entry, size in stored.items()
        if getattr(config, entry) != size
    ]


def taming_name(name: str, levels: int) -> str:
    """Return the public key for a diffusers key; taming counts decoder levels from the finest."""
    name = renamed(name, _RENAMES)
    return re.sub(
        r"^decoder\.up\.(\d+)", lambda match: f"decoder.up.{levels - 1 - int(match[1])}", name
    )


def _taming(config: VqganConfig) -> Callable[[str], str]:
    return partial(taming_name, levels=len(config.ch_mult))


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


def fill(
    model: VQModel,
    config: VqganConfig,
    state: Mapping[str, Tensor],
    name_of: Callable[[str], str] | None = None,
) -> VQModel:
    """Give the network that `build_fitting` has returned its weights, in fp32.

    state: weights by public key; those of training only are passed over.
    """
    name_of = name_of or _taming(config)
    weights = {  # copies: nothing keeps the mapped file open
        name: state[name_of(name)].reshape(value.shape).to(torch.float32, copy=True)
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(weights, assign=True)
    return model


def trained_shapes(stored: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Leave out what only training needs: losses and moving averages."""
    training = ("loss.", "ema_")
    return {name: shape for name, shape in stored.items() if not name.startswith(training)}
