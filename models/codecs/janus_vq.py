"""Janus-Pro's image codec: LlamaGen's VQ-16 among the weights of a checkpoint.

In the authors' files it has LlamaGen's own keys, in transformers' those of taming-transformers,
with the decoder's levels counted in the order of execution.
"""

import re
from pathlib import Path

import torch

from models.codecs.llamagen_vq import assemble_vq
from models.codecs.vqgan import ImageTokenizer
from models.files.tensors import read_tensors
from models.files.weights import weight_files

_RENAMES = (
    (r"\.(down|up)\.(\d+)\.(?=block|attn|downsample|upsample)", r".conv_blocks.\2."),
    (r"\.block\.", ".res."),
    (r"\.mid\.block_1\.", ".mid.0."),
    (r"\.mid\.attn_1\.", ".mid.1."),
    (r"\.mid\.block_2\.", ".mid.2."),
)


def llamagen_name(key: str) -> str:
    """Return LlamaGen's key for a key of either layout, without its prefix."""
    for pattern, replacement in _RENAMES:
        key = re.sub(pattern, replacement, key)
    return key


def load_janus_vq(folder: Path, prefix: str, side: int, device: torch.device) -> ImageTokenizer:
    """Load the codec in fp32.

    Args:
        folder: the checkpoint's.
        prefix: of the codec's keys.
        side: rows and columns of codes of an image.
        device: where the network goes.

    Raises:
        ValueError: naming the damaged file, or every key that does not fit.
    """
    stored = list(read_tensors(weight_files(folder), prefix))
    if not stored:
        raise ValueError(f"{folder}: no image codec among the weights (keys {prefix}*)")
    state = {llamagen_name(key.removeprefix(prefix)): value for key, value in stored}
    try:
        # pixel values are truncated, as the authors' script and transformers do
        return assemble_vq(state, side, device, rounding=0.0)
    except ValueError as error:
        raise ValueError(f"{folder}, weights {prefix}*: {error}") from error
