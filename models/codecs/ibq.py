"""Emu3.5's image codec: a VQGAN with 131,072 codes (IBQ, arXiv 2412.02692).

BAAI/Emu3.5-VisionTokenizer holds config.yaml and model.ckpt. A code is the latent of the greatest
inner product, where other VQGANs take the nearest one.
"""

from pathlib import Path

import torch
from torch import Tensor

from models.codecs.vqgan import ImageTokenizer, VqganFiles
from models.codecs.vqgan_config import read_config

IBQ_FILES = ("config.yaml", "model.ckpt")
_TOGETHER = 256  # positions of an image that are scored at a time; all 4,096 would take 2 GiB


class IBQ(ImageTokenizer):
    """Pixels <-> codes by Emu3.5's network."""

    def _nearest(self, latents: Tensor) -> Tensor:
        parts = latents.split(_TOGETHER, 1)
        return torch.cat([(part @ self.codebook.T).argmax(-1) for part in parts], 1)


def ibq_files(home: Path) -> VqganFiles:
    """Return the weights in a codec's folder; ValueError as `read_config`."""
    config, weights = (home / name for name in IBQ_FILES)
    return VqganFiles(str(weights), read_config(config), [weights])


def load_ibq(home: Path, device: torch.device) -> IBQ:
    """Load the codec in fp32; ValueError names the damaged file, or every key that differs."""
    plain = ibq_files(home).load(device)
    return IBQ(plain.model, plain.config, source=plain.source)
