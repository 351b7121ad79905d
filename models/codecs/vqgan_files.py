"""Where the weights of published VQGANs are, and how their networks and keys differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.fields import mismatch
from models.codecs.vqgan import IBQ, ImageTokenizer
from models.codecs.vqgan_config import VqganConfig, json_config, read_config
from models.codecs.vqgan_layout import (
    LLAMAGEN_RENAMES,
    build_fitting,
    config_of,
    fill,
    llamagen_name,
    taming_name,
)
from models.files.gather import renamed
from models.files.names import BUNDLED_VQGAN, VQGAN_CONFIG, VQGAN_WEIGHTS
from models.files.tensors import read_tensors
from models.files.weights import naming, read_header, weight_files
from support.json_files import read_object

IBQ_FILES = ("config.yaml", "model.ckpt")
_MOVQGAN_SIDE = 96  # rows and columns of codes of the usual image


@dataclass(frozen=True)
class VqganFiles:
    """The weights of a VQGAN."""

    source: str  # in words, for reports and errors
    paths: list[Path]
    config: VqganConfig
    prefix: str = ""  # of its keys among those of a checkpoint
    llamagen: bool = False  # LlamaGen's keys, and latents of length 1
    kind: type[ImageTokenizer] = ImageTokenizer
    rounding: float = 0.0  # as `ImageTokenizer` takes it

    def build(self) -> nn.Module:
        """Return the network on the meta device, once the files' headers fit it.

        Raises:
            ValueError: naming the damaged file, or every key that does not fit.
        """
        shapes = self.shapes()
        with naming(self.source):
            return build_fitting(self.config, shapes, self._name_of)

    def load(self, device: torch.device | str = "cpu") -> ImageTokenizer:
        """Return the image tokenizer in fp32; errors as `build`."""
        model = self.build()
        fill(model, self.tensors(), self._name_of)
        if self.llamagen:
            # The file holds latents of any length; the decoder was trained on those of length 1.
            # The length of the encoder's outputs does not change which of these is nearest.
            codebook = model.quantize.embedding.weight
            codebook.data = F.normalize(codebook.data, dim=-1)
        model = model.to(device, memory_format=torch.channels_last)
        return self.kind(model, self.config, self.rounding, self.source)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes in the files' headers, by the keys of this layout."""
        stored = _shapes(self.paths, self.prefix)
        return {self.own_name(key): shape for key, shape in stored.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights, by the keys of this layout."""
        stored = read_tensors(self.paths, self.prefix)
        return {self.own_name(key.removeprefix(self.prefix)): value for key, value in stored}

    def own_name(self, key: str) -> str:
        """Return the key of this layout for a stored one."""
        return renamed(key, LLAMAGEN_RENAMES) if self.llamagen else key

    def _name_of(self, name: str) -> str:
        """Return the public key for a diffusers key."""
        return llamagen_name(name) if self.llamagen else taming_name(name, len(self.config.ch_mult))


def _shapes(paths: list[Path], prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights whose keys start with a prefix, which is left out."""
    return {
        key.removeprefix(prefix): info.shape
        for path in paths
        for key, info in read_header(path).items()
        if key.startswith(prefix)
    }


def vqgan_files(home: Path) -> VqganFiles:
    """Return Chameleon's VQGAN in a folder with vqgan.yaml and its weights.

    Raises:
        ValueError: one of the files is missing, or the first is damaged.
    """
    config = read_config(home / VQGAN_CONFIG)
    for path in (home / name for name in VQGAN_WEIGHTS):
        if path.exists():
            return VqganFiles(str(path), [path], config)
    raise ValueError(f"{home}: found none of {', '.join(VQGAN_WEIGHTS)}")


def load_vqgan(folder: str | Path) -> ImageTokenizer:
    """Load a VQGAN's folder in fp32; ValueError names what is missing, damaged or different."""
    return vqgan_files(Path(folder)).load()


def bundled_vqgan(folder: Path) -> VqganFiles:
    """Return the VQGAN among a Hugging Face Chameleon checkpoint's own weights.

    `vq_config` of its config.json gives the sizes. Errors as `vqgan_files`.
    """
    config = json_config(read_object(folder / "config.json"), str(folder / "config.json"))
    source = f"{folder}, weights {BUNDLED_VQGAN}*"
    return VqganFiles(source, weight_files(folder), config, BUNDLED_VQGAN)


def ibq_files(home: Path) -> VqganFiles:
    """Return Emu3.5's codec in BAAI/Emu3.5-VisionTokenizer's folder; errors as `read_config`."""
    config, weights = (home / name for name in IBQ_FILES)
    return VqganFiles(str(weights), [weights], read_config(config), kind=IBQ)


def llamagen_vq(path: Path, side: int) -> VqganFiles:
    """Return LlamaGen's VQ-16 (arXiv 2406.06525) in vq_ds16_t2i.pt or a file with the same keys.

    Args:
        path: of --vq_path.
        side: rows and columns of codes of an image.

    Raises:
        ValueError: naming flag and file, if it is missing, damaged or another network's.
    """
    config = _sized(path, "LlamaGen's vq_ds16_t2i.pt", side)
    return VqganFiles(f"--vq_path: {path}", [path], config, llamagen=True, rounding=0.5)


def movqgan_files(path: Path) -> VqganFiles:
    """Return MoVQGAN (arXiv 2209.09002) in movqgan_270M.ckpt; arguments, errors as `llamagen_vq`.

    The latents scale and shift all norms of its decoder.
    """
    config = _sized(path, "MoVQGAN's movqgan_270M.ckpt", _MOVQGAN_SIDE, spatial_norm=True)
    return VqganFiles(f"--vq_path: {path}", [path], config, rounding=0.5)


def _sized(path: Path, expected: str, side: int, **more: bool) -> VqganConfig:
    if not path.is_file():
        raise mismatch("--vq_path", f"no file {path}", expected)
    shapes = _shapes([path])
    with naming(f"--vq_path: {path}"):
        return config_of(shapes, side, **more)


def janus_vq(folder: Path, prefix: str, side: int) -> VqganFiles:
    """Return Janus-Pro's codec among a checkpoint's weights: LlamaGen's network.

    In the authors' files it has LlamaGen's own keys, in transformers' those of taming-transformers,
    with the decoder's levels counted in the order of execution.

    Args:
        folder: the checkpoint's.
        prefix: of the codec's keys.
        side: rows and columns of codes of an image.

    Raises:
        ValueError: the weights are missing, damaged or another network's.
    """
    paths, source = weight_files(folder), f"{folder}, weights {prefix}*"
    if not (shapes := _shapes(paths, prefix)):
        raise ValueError(f"{folder}: no image codec among the weights (keys {prefix}*)")
    with naming(source):
        return VqganFiles(source, paths, config_of(shapes, side), prefix, llamagen=True)
