"""MoVQGAN (arXiv 2209.09002) from the public file `movqgan_270M.ckpt`, pixels <-> codes.

The network is the VQGAN of the other targets with attention at its coarsest level; every norm of
the decoder is scaled and shifted by the latents. The file has no configuration.
"""

from dataclasses import replace
from pathlib import Path

import torch

from models.codecs.llamagen_vq import TAMING_RENAMES, read_vq, sizes_of
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_config import VqganConfig
from models.codecs.vqgan_layout import build_fitting, fill, trained_shapes
from models.files.gather import renamed

_SIDE = 96  # rows and columns of codes of the usual image
_FILE = "MoVQGAN's movqgan_270M.ckpt"


def movqgan_config(path: Path) -> VqganConfig:
    """Return the sizes of the network in a file; errors as `load_movqgan`."""
    state = read_vq(path, expected=_FILE)
    try:
        sizes = sizes_of({renamed(key, TAMING_RENAMES): x for key, x in state.items()}, _SIDE)
    except ValueError as error:
        raise ValueError(f"--vq_path: {path}: {error}") from error
    return replace(sizes, spatial_norm=True)


def load_movqgan(path: Path, device: torch.device) -> ImageTokenizer:
    """Load MoVQGAN in fp32.

    Args:
        path: `movqgan_270M.ckpt`, or a file with the same keys.
        device: where the network goes.

    Raises:
        ValueError: naming flag and file, if it is missing or damaged, would run code or does not
            fit.
    """
    config, state = movqgan_config(path), read_vq(path, expected=_FILE)
    shapes = trained_shapes({key: tuple(value.shape) for key, value in state.items()})
    try:
        model = fill(build_fitting(config, shapes), config, state)
    except ValueError as error:
        raise ValueError(f"--vq_path: {path}: {error}") from error
    model = model.to(device, memory_format=torch.channels_last)
    return ImageTokenizer(model, config, rounding=0.5, source=str(path))
