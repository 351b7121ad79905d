"""GLM-Image's codes: of a picture, by transformers' vision encoder and quantiser, and as a picture,
painted by diffusers' GlmImagePipeline, or a pixel per code.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.fields import refusing
from models.base import ImageGrid
from models.codecs.vqgan import finite
from models.files.entries import library_errors, refuse_entry, require_values
from models.files.network import Network, Slot
from models.files.tensors import read_header, read_tensors
from models.files.weights import all_of, folder_shapes, present_files, weight_files
from support.border import Failure
from support.extras import install
from support.json_files import read_object

if TYPE_CHECKING:
    from diffusers import GlmImagePipeline

PREPROCESSOR = "preprocessor_config.json"
_CODEBOOK = "model.vqmodel.quantize.embedding.weight"
_OTHERS = ("model.language_model.", "lm_head.")
# what diffusers paints with, and its weights' name
_DIFFUSERS = "diffusion_pytorch_model.safetensors"
_NETWORKS = {"text_encoder": "model.safetensors", "transformer": _DIFFUSERS, "vae": _DIFFUSERS}
_FILES = ("model_index.json", "scheduler", "tokenizer", *_NETWORKS)
_PAINTING = 2 * 2**30  # bytes kept free for the activations of these; not measured


class GlmVision:
    """Pictures -> codes of the small grid, then of the large one. Networks run in fp32.

    A code is of 16 x 16 pixels of a picture at half the size of the image that diffusers paints.
    The authors do not say how they made the small grid of a training picture; here the picture is
    shrunk to it.
    """

    def __init__(self, folder: Path, config: dict, grid: ImageGrid, device: torch.device):
        """Compare the headers of the weights, which are read with the first picture."""
        self.folder, self.grid, self.device = folder, grid, device
        with refusing(str(folder)):
            self.files = vision_network(config)
        self.files.check(folder_shapes(folder), str(folder))
        self.mean, self.std = normalisation(folder)
        self.downsampling = self.files.module["visual"].patch_size  # pixels per token of a side

    @cached_property
    def network(self) -> nn.ModuleDict:
        """The loaded networks, `visual` and `vqmodel`."""
        self.files.fill(self.folder, torch.float32, self.device)
        return self.files.module

    @torch.inference_mode()
    def encode(self, pictures: Tensor) -> Tensor:
        """Pixels (n, h, w, 3), uint8, of the large grid -> codes (n, tokens), int64 on the CPU."""
        return torch.stack([self._codes(pixels) for pixels in pictures]).cpu()

    def _codes(self, pixels: Tensor) -> Tensor:
        """Pixels (height, width, 3) -> codes (tokens,)."""
        pixels, patch = pixels.to(self.device).permute(2, 0, 1)[None].float(), self.downsampling
        codes = []
        for rows, columns in self.grid.sizes:
            size = rows * patch, columns * patch
            small = F.interpolate(pixels, size, mode="bicubic", antialias=True)
            # As transformers does with uint8: bicubic interpolation overshoots 0 and 255.
            codes.append(self._grid_codes(small.round().clamp(0, 255)[0], rows, columns))
        return torch.cat(codes)

    def _grid_codes(self, pixels: Tensor, rows: int, columns: int) -> Tensor:
        """Pixels (3, height, width) -> codes (rows x columns,)."""
        mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        patches = ((pixels / 255 - mean) / std).unflatten(1, (rows, -1)).unflatten(3, (columns, -1))
        patches = patches.permute(1, 3, 0, 2, 4).flatten(0, 1).flatten(1)  # (tokens, 3 patch^2)
        sizes = torch.tensor([[1, rows, columns]], device=self.device)
        latents = self.network["visual"](patches, sizes).last_hidden_state  # (tokens, channels)
        grid = finite(latents).T.view(1, -1, rows, columns)
        return self.network["vqmodel"].encode(grid).image_tokens


def normalisation(folder: Path) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation that pixels from 0 to 1 are normalised with.

    They are the published processor's, not the defaults of transformers' class, which are CLIP's.
    """
    homes = folder, folder.absolute().parent / "processor"
    path = next((home / PREPROCESSOR for home in homes if (home / PREPROCESSOR).is_file()), None)
    if path is None:
        raise ValueError(f"missing file: {PREPROCESSOR} in {' or '.join(map(str, homes))}")
    entries = read_object(path)

    def colours(name: str) -> list[float]:
        value = entries.get(name)
        three = value if isinstance(value, list) and len(value) == 3 else []
        if not three or not all(type(one) in (int, float) and one > 0 for one in three):
            refuse_entry(name, value, "three numbers above 0", str(path))
        return three

    return colours("image_mean"), colours("image_std")


def vision_network(config: dict) -> Network[nn.ModuleDict]:
    """Return the networks of a config.json; ValueError for an entry that cannot be used."""
    from transformers import GlmImageVisionConfig, GlmImageVisionModel, GlmImageVQVAEConfig
    from transformers.models.glm_image.modeling_glm_image import GlmImageVQVAE

    sections = [config.get(name) or {} for name in ("vision_config", "vq_config")]
    with library_errors("config.json: vision_config or vq_config"):
        visual, quantiser = GlmImageVisionConfig(**sections[0]), GlmImageVQVAEConfig(**sections[1])
    # A larger size needs its patches in blocks of that side, and here they are in raster order.
    require_values(visual.to_dict(), {"spatial_merge_size": (1,)})
    with torch.device("meta"):
        module = nn.ModuleDict(
            {"visual": GlmImageVisionModel(visual), "vqmodel": GlmImageVQVAE(quantiser)}
        )
    keys = {f"model.{name}": Slot(name) for name, _ in module.named_parameters()}
    return Network(module, keys, _OTHERS)


def glm_codebook(folder: Path) -> Tensor:
    """Return the latents of the codes (codes, width), fp32, of length 1 as in the quantiser."""
    for _, tensor in read_tensors(weight_files(folder), _CODEBOOK):
        return F.normalize(tensor.float(), dim=-1)
    raise ValueError(f"{folder}: missing key {_CODEBOOK}")


def lacks_painter(root: Path) -> str:
    """Return, in words, what a checkpoint cannot be painted without; "" if nothing is missing."""
    missing = [name for name in _FILES if not (root / name).exists()]
    missing = missing or [
        f"{n}/{name}" for n, name in _NETWORKS.items() if not present_files(root / n, name)
    ]
    if missing:
        return f"{root} has no {', '.join(missing)}"
    if find_spec("diffusers") is None:
        return f"diffusers is not installed: {install('glm')}"
    there = find_spec("diffusers.pipelines.glm_image") is not None
    return "" if there else f"diffusers {version('diffusers')} has no GlmImagePipeline"


def _check_network(folder: Path, name: str) -> None:
    """Raise a ValueError for a file that is missing or, by its header, damaged."""
    read_object(folder / "config.json")
    all_of(*(partial(read_header, file) for file in weight_files(folder, (name,))))


@dataclass(frozen=True)
class GlmPainter:
    """The pipeline with its own steps and guidance; its weights are read for the first image."""

    root: Path
    device: torch.device
    cell: ClassVar[int] = 32  # pixels of a token along one side

    @classmethod
    def open(cls, root: Path, device: torch.device) -> GlmPainter:
        """Return the painter; a ValueError names files of its networks, missing or damaged."""
        all_of(*(partial(_check_network, root / n, name) for n, name in _NETWORKS.items()))
        return cls(root, device)

    def to(self, device: torch.device) -> GlmPainter:
        return replace(self, device=device)

    @property
    def bytes(self) -> int:
        """Memory of its weights, in the type that they are stored in."""
        files = (present_files(self.root / n, name) for n, name in _NETWORKS.items())
        return sum(file.stat().st_size for file in chain(*files))

    @cached_property
    def pipeline(self) -> GlmImagePipeline:
        """diffusers' pipeline without the autoregressive stage; a Failure if it cannot be read."""
        import transformers.utils.logging as theirs
        from diffusers import GlmImagePipeline
        from diffusers.utils import logging

        logging.disable_progress_bar()
        theirs.disable_progress_bar()
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        with warnings.catch_warnings():
            # later versions of diffusers call it dtype, which earlier ones do not know
            warnings.filterwarnings("ignore", "`torch_dtype` is deprecated", FutureWarning)
            try:
                pipeline = GlmImagePipeline.from_pretrained(
                    self.root, vision_language_encoder=None, processor=None, torch_dtype=dtype
                )
            except Exception as error:  # on damaged files diffusers fails with errors of many kinds
                shown = " ".join(str(error).split())
                raise Failure(f"{self.root} cannot be read by diffusers: {shown}") from error
        check_schedule(pipeline.scheduler)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline.to(self.device)

    def paint(self, codes: Tensor, size: tuple[int, int], text: str, seed: int) -> Tensor:
        """Codes (tokens,) -> pixels (height, width, 3), uint8 on the CPU; size: rows, columns."""
        # a token stands for 2 x 2 of the pipeline's
        codes = last_grid(codes, size).repeat_interleave(2, 0).repeat_interleave(2, 1)
        (image,) = self.pipeline(
            text,
            prior_token_ids=codes.view(1, -1).to(self.device),
            height=self.cell * size[0],
            width=self.cell * size[1],
            # on the CPU, where diffusers then draws: the same noise on every device
            generator=torch.Generator().manual_seed(seed),
            output_type="np",
        ).images  # (height, width, 3) from 0 to 1
        return (255 * finite(torch.from_numpy(image))).round().byte()


def check_schedule(scheduler: Any) -> None:
    """Raise a Failure unless a scheduler keeps the time steps that the pipeline gives it.

    diffusers 0.40 and 0.41 compute other ones, with which pictures are wrong without an error.
    """
    steps = torch.linspace(1000, 1, 51)[:-1].int().float().numpy()
    shift = {"mu": 3.25} if scheduler.config.get("use_dynamic_shifting") else {}
    scheduler = type(scheduler).from_config(scheduler.config)
    scheduler.set_timesteps(timesteps=steps, sigmas=steps / 1000, **shift)
    kept = scheduler.timesteps.cpu().numpy()
    if len(kept) != len(steps) or abs(kept - steps).max() > 1e-3:
        raise Failure(
            f"diffusers {version('diffusers')} paints GLM-Image wrongly: its time steps are "
            f"{kept[10]:.1f} after ten of 50 steps, not {steps[10]:.1f}; {install('glm')}"
        )


@dataclass(frozen=True)
class TokenPicture:
    """A pixel per token: its code is 256 red + green. Without a painter images stay tokens."""

    painter: GlmPainter | None = None

    def to(self, device: torch.device) -> TokenPicture:
        return replace(self, painter=self.painter and self.painter.to(device))

    def decoding_bytes(self, grid: ImageGrid) -> int:
        """Return what painting takes, its weights included: they are read for the first image."""
        return 0 if self.painter is None else self.painter.bytes + _PAINTING

    def decode(self, codes: Tensor, size: tuple[int, int]) -> Tensor:
        """Codes (images, tokens) -> pixels (images, height, width, 3), uint8 on the CPU.

        size: rows and columns of the last grid, which is shown. With a painter, a token has the
        size that it will have in the picture.
        """
        codes = last_grid(codes, size).cpu()
        pixels = torch.stack([codes // 256, codes % 256, torch.zeros_like(codes)], -1).byte()
        cell = 1 if self.painter is None else self.painter.cell
        return pixels.repeat_interleave(cell, 1).repeat_interleave(cell, 2)


def last_grid(codes: Tensor, size: tuple[int, int]) -> Tensor:
    """Codes (..., tokens) -> those of the last grid (..., rows, columns)."""
    return codes[..., -size[0] * size[1] :].unflatten(-1, size)
