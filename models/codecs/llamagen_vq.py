"""LlamaGen's VQ-16 (arXiv 2406.06525), pixels <-> codes: its own file, and Janus-Pro's codec.

The network is the VQGAN of the other targets with attention at its coarsest level. Latents of codes
have length 1: the file's codebook is normalised once, here. The encoder's outputs need not be:
their length does not change which latent of length 1 is nearest.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.fields import mismatch
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_config import VqganConfig
from models.codecs.vqgan_layout import build_fitting, fill
from models.files.gather import renamed
from models.files.tensors import read_tensors
from models.files.weights import weight_files

_RENAMES = (
    (r"\.mid_block\.resnets\.0\.", ".mid.0."),
    (r"\.mid_block\.attentions\.0\.", ".mid.1."),
    (r"\.mid_block\.resnets\.1\.", ".mid.2."),
    (r"\.(?:down|up)_blocks\.(\d+)\.", r".conv_blocks.\1."),  # both count in the order of execution
    (r"\.resnets\.", ".res."),
    (r"\.attentions\.", ".attn."),
    (r"\.(down|up)samplers\.0\.", r".\1sample."),
    (r"\.group_norm\.", ".norm."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".proj_out."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
    (r"\.conv_norm_out\.", ".norm_out."),
)
# taming-transformers' keys -> LlamaGen's, which stay as they are
TAMING_RENAMES = (
    (r"\.(down|up)\.(\d+)\.(?=block|attn|downsample|upsample)", r".conv_blocks.\2."),
    (r"\.block\.", ".res."),
    (r"\.mid\.block_1\.", ".mid.0."),
    (r"\.mid\.attn_1\.", ".mid.1."),
    (r"\.mid\.block_2\.", ".mid.2."),
)
CODEBOOK = "quantize.embedding.weight"
_STATISTIC = "quantize.codebook_used"  # of training


def public_name(name: str) -> str:
    """Return LlamaGen's key for the diffusers key `name`."""
    return renamed(name, _RENAMES)


def sizes_of(state: Mapping[str, Tensor], side: int) -> VqganConfig:
    """Return the sizes of the network that has these weights; the file has no configuration.

    Args:
        state: weights under LlamaGen's keys.
        side: rows and columns of codes of an image.

    Raises:
        ValueError: if a weight that has one of the sizes is missing, or the sizes fit no VQGAN.
    """
    levels = _count(state, "encoder.conv_blocks.")
    try:
        ch = len(state["encoder.conv_in.weight"])
        widths = [
            len(state[f"encoder.conv_blocks.{level}.res.0.conv2.weight"]) for level in range(levels)
        ]
        n_embed, embed_dim = state[CODEBOOK].shape
        return VqganConfig(
            ch=ch,
            ch_mult=tuple(width // ch for width in widths),
            num_res_blocks=_count(state, "encoder.conv_blocks.0.res."),
            z_channels=state["quant_conv.weight"].shape[1],
            embed_dim=embed_dim,
            n_embed=n_embed,
            resolution=side * 2 ** (levels - 1),
            coarse_attention=True,
        )
    except KeyError as error:
        raise ValueError(f"missing key {error.args[0]}") from error


def _count(state: Mapping[str, Tensor], prefix: str) -> int:
    """Return how many different numbers follow `prefix` in the keys."""
    return len({key[len(prefix) :].split(".")[0] for key in state if key.startswith(prefix)})


def read_vq(
    path: Path, prefix: str = "", expected: str = "LlamaGen's vq_ds16_t2i.pt"
) -> dict[str, Tensor]:
    """Return the weights in the file --vq_path whose keys start with `prefix`.

    Raises:
        ValueError: naming the file, if it is missing (and what is expected) or damaged.
    """
    if not path.is_file():
        raise mismatch("--vq_path", f"no file {path}", expected)
    return dict(read_tensors([path], prefix))


def load_llamagen_vq(path: Path, side: int, device: torch.device) -> ImageTokenizer:
    """Load LlamaGen's image tokenizer in fp32.

    Args:
        path: `vq_ds16_t2i.pt`, or a file with the same keys.
        side: rows and columns of codes of an image.
        device: where the network goes.

    Raises:
        ValueError: naming flag and file, if it is missing or damaged, would run code or does not
            fit.
    """
    state = read_vq(path)
    try:
        return _assemble(state, side, device, rounding=0.5, source=str(path))
    except ValueError as error:
        raise ValueError(f"--vq_path: {error}") from error


def load_janus_vq(folder: Path, prefix: str, side: int, device: torch.device) -> ImageTokenizer:
    """Load Janus-Pro's codec in fp32: the same network among the weights of a checkpoint.

    In the authors' files it has LlamaGen's own keys, in transformers' those of taming-transformers,
    with the decoder's levels counted in the order of execution.

    Args:
        folder: the checkpoint's.
        prefix: of the codec's keys.
        side, device: as `load_llamagen_vq` takes them.

    Raises:
        ValueError: naming the damaged file, or every key that does not fit.
    """
    stored = list(read_tensors(weight_files(folder), prefix))
    if not stored:
        raise ValueError(f"{folder}: no image codec among the weights (keys {prefix}*)")
    state = {renamed(key.removeprefix(prefix), TAMING_RENAMES): value for key, value in stored}
    # pixel values are truncated, as the authors' script and transformers do
    return _assemble(state, side, device, 0.0, f"{folder}, weights {prefix}*")


def _assemble(
    state: Mapping[str, Tensor], side: int, device: torch.device, rounding: float, source: str
) -> ImageTokenizer:
    """Return the image tokenizer with these weights, in fp32.

    Args:
        state: weights under LlamaGen's keys.
        side: rows and columns of codes of an image.
        device: where the network goes.
        rounding, source: as `ImageTokenizer` takes them.

    Raises:
        ValueError: naming the source and every key that does not fit.
    """
    try:
        config = sizes_of(state, side)
        shapes = {key: tuple(value.shape) for key, value in state.items() if key != _STATISTIC}
        model = fill(build_fitting(config, shapes, public_name), config, state, public_name)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    # the file holds latents of any length; the decoder was trained on those of length 1
    codebook = model.quantize.embedding.weight
    codebook.data = F.normalize(codebook.data, dim=-1)
    model = model.to(device, memory_format=torch.channels_last)
    return ImageTokenizer(model, config, rounding, source)
