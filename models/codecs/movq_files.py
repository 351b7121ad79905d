"""Where the weights of Emu3's codec lie, and their names in transformers' network.

transformers' checkpoints hold them among their own weights. The authors publish them apart:
BAAI/Emu3-VisionTokenizer, looked for in the folder `Emu3-VisionTokenizer` next to the checkpoint.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from models.files.gather import renamed
from models.files.tensors import read_tensors
from models.files.weights import weight_files
from support.json_files import read_object

APART = "Emu3-VisionTokenizer"
_PREFIXES = ("model.vqmodel.", "vqmodel.")  # of today's transformers, and of the public files
# the authors' entries of config.json -> transformers'
_ENTRIES = {
    "codebook_size": "codebook_size",
    "embed_dim": "embed_dim",
    "z_channels": "latent_channels",
    "double_z": "double_latent",
    "in_channels": "in_channels",
    "out_channels": "out_channels",
    "temporal_downsample_factor": "temporal_downsample_factor",
    "ch": "base_channels",
    "ch_mult": "channel_multiplier",
    "num_res_blocks": "num_res_blocks",
    "attn_resolutions": "attn_resolutions",
}
# the authors' keys -> transformers'
_RENAMES = (
    (r"\.mid\.attn_1\.norm\.", ".mid.attn_norm."),
    (r"\.attn\.(\d+)\.norm\.", r".attn_norms.\1."),
    (r"\.([qkv])\.(weight|bias)$", r".\1_proj.\2"),
    (r"\.proj_out\.", ".out_proj."),
    (r"^(\w+)\.(down|up)\.", r"\1.\2_block.\2."),
    (r"^(\w+)\.mid\.", r"\1.middle_block."),
)
_MATRIX = re.compile(r"\.(?:[qkv]|proj_out)\.weight$")


def movq_entries(folder: Path, config: Mapping[str, object]) -> dict:
    """Return the codec's entries as in `vq_config` of transformers' config.json."""
    if "vq_config" in config or not (home := _apart(folder)).is_dir():
        given = config.get("vq_config")
        return given if isinstance(given, dict) else {}
    codec = read_object(home / "config.json")
    entries = {theirs: codec[ours] for ours, theirs in _ENTRIES.items() if ours in codec}
    widths = entries.get("channel_multiplier", (1, 2, 2, 4))
    return entries | {"hidden_size": entries.get("base_channels", 256) * widths[-1]}


def movq_weights(folder: Path) -> tuple[str, dict[str, Tensor]]:
    """Return where the codec's weights lie, in words, and the weights by transformers' names.

    Raises:
        ValueError: naming the checkpoint without a codec, or the damaged file.
    """
    stored: dict[str, Tensor] = {}
    for prefix in _PREFIXES:
        tensors = read_tensors(weight_files(folder), prefix)
        stored |= {key.removeprefix(prefix): value for key, value in tensors}
    if stored:
        return f"{folder}, weights vqmodel.*", stored
    if not (home := _apart(folder)).is_dir():
        raise ValueError(
            f"{folder}: no image codec among the weights (keys vqmodel.*, as BAAI/Emu3-Gen-hf has "
            f"them) and no folder {home}: `hf download BAAI/{APART}` with --local-dir brings it"
        )
    tensors = read_tensors(weight_files(home))
    return str(home), {renamed(key, _RENAMES): _flat(key, value) for key, value in tensors}


def _apart(folder: Path) -> Path:
    return folder.absolute().parent / APART


def _flat(key: str, value: Tensor) -> Tensor:
    """Return 1 x 1 convolutions of attention as the matrices that transformers has there."""
    return value.flatten(1) if _MATRIX.search(key) and value.ndim == 4 else value
