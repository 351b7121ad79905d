"""Published VQGANs: where their weights are, and how their networks and keys differ.

Most files have the keys of taming-transformers, as our networks do; LlamaGen's have keys of its own
(`llamagen_name`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import multimode
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import nn

from configs.fields import Flag, mismatch, refusing
from models.codecs.vqgan import (
    IBQ,
    ImageTokenizer,
    VqganConfig,
    json_config,
    read_config,
    write_config,
)
from models.codecs.vqgan_network import Vqgan
from models.files.network import Network, Slot
from models.files.tensors import renamed, shapes_in
from models.files.weights import BUNDLED_VQGAN, VQGAN_CONFIG, VQGAN_WEIGHTS, weight_files
from support.durable import replace_file
from support.json_files import read_object, shortened

IBQ_FILES = ("config.yaml", "model.ckpt")
_MOVQGAN_SIDE = 96  # rows and columns of codes of the usual image
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
        """Return the network on the meta device, once the files' headers fit it."""
        shapes = shapes_in(self.paths)
        with refusing(str(self.source)):
            network = self.build(_without(self.prefix, shapes))
        network.check(shapes, self.source)
        return network

    def build(self, shapes: dict[str, tuple[int, ...]]) -> Network:
        """Return the network for weights of these shapes, by key without the prefix."""
        config, prefix = self.config, self.prefix
        # before the network is built, which with wrong sizes takes minutes or overflows
        faults = [
            f"{entry} is {shortened(getattr(config, entry))}, the weights hold {size}"
            for entry, size in stored_sizes(shapes).items()
            if getattr(config, entry) != size
        ]
        if faults:
            raise ValueError(f"the weights do not fit the configuration: {'; '.join(faults)}")
        with torch.device("meta"):
            model = Vqgan(config)
        keys = {prefix + self._key(name): Slot(name) for name in model.state_dict()}
        training = tuple(prefix + name for name in ("loss.", "ema_", "quantize.codebook_used"))
        renames = LLAMAGEN_RENAMES if self.llamagen else ()
        return Network(model, keys, ignored=training, renames=renames, prefix=prefix)

    def _key(self, name: str) -> str:
        return llamagen_name(name, len(self.config.ch_mult)) if self.llamagen else name

    def load(self, device: torch.device | str = "cpu") -> ImageTokenizer:
        network = self.network()
        network.read(self.paths, torch.float32, torch.device("cpu"))
        return self.open(network.module, torch.device(device))

    def open(self, model: nn.Module, device: torch.device) -> ImageTokenizer:
        if self.llamagen:
            # The file holds latents of any length; the decoder was trained on those of length 1.
            # The length of the encoder's outputs does not change which of these is nearest.
            codebook = model.quantize.embedding.weight
            codebook.data = F.normalize(codebook.data, dim=-1)
        model = model.to(device).to(memory_format=torch.channels_last)
        return self.kind(model, self.config, self.rounding)


def _without(prefix: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights whose keys start with a prefix, which is left out."""
    return {
        key.removeprefix(prefix): shape for key, shape in shapes.items() if key.startswith(prefix)
    }


def vqgan_files(home: Path) -> VqganFiles:
    """Return Chameleon's VQGAN in a folder."""
    config = read_config(home / VQGAN_CONFIG)
    for path in (home / name for name in VQGAN_WEIGHTS):
        if path.exists():
            return VqganFiles(str(path), [path], config)
    raise ValueError(f"{home}: found none of {', '.join(VQGAN_WEIGHTS)}")


def load_vqgan(folder: str | Path) -> ImageTokenizer:
    """Load a VQGAN's folder in fp32."""
    return vqgan_files(Path(folder)).load()


def bundled_vqgan(folder: Path) -> VqganFiles:
    """Return the VQGAN among a Hugging Face Chameleon checkpoint's own weights."""
    path = folder / "config.json"
    config = json_config(read_object(path).get("vq_config"), str(path))
    source = f"{folder}, weights {BUNDLED_VQGAN}*"
    return VqganFiles(source, weight_files(folder), config, BUNDLED_VQGAN)


def ibq_files(home: Path) -> VqganFiles:
    """Return Emu3.5's codec in BAAI/Emu3.5-VisionTokenizer's folder."""
    config, weights = (home / name for name in IBQ_FILES)
    return VqganFiles(str(weights), [weights], read_config(config), kind=IBQ)


def llamagen_vq(path: Path, side: int) -> VqganFiles:
    """Return LlamaGen's VQ-16 (arXiv 2406.06525) in vq_ds16_t2i.pt; side: codes per row."""
    config = _sized(path, "LlamaGen's vq_ds16_t2i.pt", side)
    return VqganFiles(f"--vq_path: {path}", [path], config, llamagen=True, rounding=0.5)


def movqgan_files(path: Path) -> VqganFiles:
    """Return MoVQGAN (arXiv 2209.09002) in movqgan_270M.ckpt."""
    config = _sized(path, "MoVQGAN's movqgan_270M.ckpt", _MOVQGAN_SIDE, spatial_norm=True)
    return VqganFiles(f"--vq_path: {path}", [path], config, rounding=0.5)


def _sized(path: Path, expected: str, side: int, spatial_norm: bool = False) -> VqganConfig:
    if not path.is_file():
        raise mismatch(Flag("vq_path"), f"no file {path}", expected)
    shapes = shapes_in([path])
    with refusing(Flag("vq_path", path)):
        return config_of(shapes, side, spatial_norm)


def janus_vq(folder: Path, prefix: str, side: int) -> VqganFiles:
    """Return Janus-Pro's codec among a checkpoint's weights: LlamaGen's network.

    In the authors' files it has LlamaGen's own keys, in transformers' those of taming-transformers,
    with the decoder's levels counted in the order of execution.
    """
    paths, source = weight_files(folder), f"{folder}, weights {prefix}*"
    if not (shapes := _without(prefix, shapes_in(paths))):
        raise ValueError(f"{folder}: no image codec among the weights (keys {prefix}*)")
    with refusing(str(source)):
        return VqganFiles(source, paths, config_of(shapes, side), prefix, llamagen=True)


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
    # The commonest width: a single tensor of a wrong shape is for `Network.check` to name.
    widths = [multimode(levels[level]) for level in sorted(levels)]
    if levels:
        stored["num_res_blocks"] = len(blocks)
        if "ch" in stored and all(len(commonest) == 1 for commonest in widths):
            stored["ch_mult"] = tuple(width // stored["ch"] for (width,) in widths)
    return stored


def config_of(
    shapes: Mapping[str, tuple[int, ...]], side: int, spatial_norm: bool = False
) -> VqganConfig:
    """Return the sizes that stored shapes tell, of files without a configuration."""
    # Without a stored level these stay, and `VqganConfig` refuses them by name.
    stored: dict[str, Any] = {"num_res_blocks": 0, "ch_mult": ()} | stored_sizes(shapes)
    if missing := [key for entry, (key, _) in _SHAPED.items() if entry not in stored]:
        raise ValueError(f"missing key {missing[0]}")
    resolution = side * 2 ** max(0, len(stored["ch_mult"]) - 1)
    return VqganConfig(
        **stored, resolution=resolution, coarse_attention=True, spatial_norm=spatial_norm
    )


def llamagen_name(name: str, levels: int) -> str:
    """Return LlamaGen's key, which counts the decoder's levels in the order of execution."""
    name = re.sub(
        r"^decoder\.up\.(\d+)", lambda match: f"decoder.up.{levels - 1 - int(match[1])}", name
    )
    return renamed(name, LLAMAGEN_RENAMES)


def save_vqgan(images: ImageTokenizer, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Write vqgan.yaml and vqgan.safetensors in the taming layout, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    state = images.model.state_dict()
    weights = {name: value.detach().cpu().to(dtype).contiguous() for name, value in state.items()}
    write_config(images.config, folder / VQGAN_CONFIG)
    replace_file(folder / VQGAN_WEIGHTS[0], save(weights))
