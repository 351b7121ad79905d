"""Where the weights of published VQGANs are, and how their networks and keys differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from configs.fields import mismatch
from models.codecs.vqgan import IBQ, ImageTokenizer
from models.codecs.vqgan_config import VqganConfig, json_config, read_config
from models.codecs.vqgan_layout import config_of, vqgan_network
from models.files.names import BUNDLED_VQGAN, VQGAN_CONFIG, VQGAN_WEIGHTS
from models.files.network import Network
from models.files.weights import naming, shapes_in, weight_files
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

    def network(self) -> Network:
        """Return the network on the meta device, once the files' headers fit it.

        Raises:
            ValueError: naming the damaged file, or every key that does not fit.
        """
        shapes = shapes_in(self.paths)
        with naming(self.source):
            network = self.build(_without(self.prefix, shapes))
        network.check(shapes, self.source)
        return network

    def build(self, shapes: dict[str, tuple[int, ...]]) -> Network:
        """Return the network for weights of these shapes; ValueError if sizes differ."""
        return vqgan_network(self.config, shapes, self.prefix, self.llamagen)

    def load(self, device: torch.device | str = "cpu") -> ImageTokenizer:
        """Return the image tokenizer in fp32; errors as `network`."""
        network = self.network()
        network.fill_from(self.paths, self.source, torch.float32, torch.device("cpu"))
        return self.open(network.module).to(torch.device(device))

    def open(self, model: nn.Module) -> ImageTokenizer:
        """Return the image tokenizer of a network with its weights."""
        if self.llamagen:
            # The file holds latents of any length; the decoder was trained on those of length 1.
            # The length of the encoder's outputs does not change which of these is nearest.
            codebook = model.quantize.embedding.weight
            codebook.data = F.normalize(codebook.data, dim=-1)
        model = model.to(memory_format=torch.channels_last)
        return self.kind(model, self.config, self.rounding, self.source)


def _without(prefix: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights whose keys start with a prefix, which is left out."""
    begun = (key for key in shapes if key.startswith(prefix))
    return {key.removeprefix(prefix): shapes[key] for key in begun}


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
    shapes = shapes_in([path])
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
    if not (shapes := _without(prefix, shapes_in(paths))):
        raise ValueError(f"{folder}: no image codec among the weights (keys {prefix}*)")
    with naming(source):
        return VqganFiles(source, paths, config_of(shapes, side), prefix, llamagen=True)
