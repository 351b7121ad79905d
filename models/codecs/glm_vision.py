"""GLM-Image's codes of a picture: its vision encoder and quantiser, by transformers' classes."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn

from models.base import ImageGrid
from models.files.entries import require_values
from models.files.network import Network, Slot
from models.files.tensors import read_tensors
from models.files.weights import folder_shapes, naming, weight_files

# of transformers' GlmImageImageProcessor, which takes them from CLIP
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_CODEBOOK = "model.vqmodel.quantize.embedding.weight"
_OTHERS = ("model.language_model.", "lm_head.")


@dataclass(frozen=True)
class GlmVision:
    """Pictures -> codes of the small grid, then of the large one. Networks run in fp32.

    A code is of 16 x 16 pixels of a picture at half the size of the image that diffusers paints.
    The authors do not say how they made the small grid of a training picture; here the picture is
    shrunk to it.
    """

    folder: Path
    config: dict  # of config.json
    grid: ImageGrid
    device: torch.device

    def __post_init__(self) -> None:
        """Compare the headers of the weights, which are read with the first picture."""
        self._files.check(folder_shapes(self.folder), str(self.folder))

    @property
    def downsampling(self) -> int:
        """Pixels per token along one side."""
        return self._files.module["visual"].patch_size

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weights of both networks, which may not have been read."""
        return [*self._files.module.parameters()]

    @cached_property
    def network(self) -> nn.ModuleDict:
        """The loaded networks, `visual` and `vqmodel`."""
        self._files.fill(self.folder, torch.float32, self.device)
        return self._files.module

    @torch.inference_mode()
    def encode(self, pictures: Tensor) -> Tensor:
        """Pixels (n, height, width, 3), uint8 -> codes (n, tokens), int64 on the CPU.

        Height and width are those of the large grid.
        """
        return torch.stack([self._codes(pixels) for pixels in pictures]).cpu()

    def _codes(self, pixels: Tensor) -> Tensor:
        """Pixels (height, width, 3) -> codes (tokens,)."""
        pixels, patch = pixels.to(self.device).permute(2, 0, 1)[None].float(), self.downsampling
        codes = []
        for rows, columns in filter(None, (self.grid.preview, (self.grid.rows, self.grid.columns))):
            size = rows * patch, columns * patch
            small = F.interpolate(pixels, size, mode="bicubic", antialias=True)
            codes.append(self._grid_codes(small.round().clamp(0, 255)[0], rows, columns))
        return torch.cat(codes)

    def _grid_codes(self, pixels: Tensor, rows: int, columns: int) -> Tensor:
        """Pixels (3, height, width) -> codes (rows x columns,)."""
        mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (_MEAN, _STD))
        patches = ((pixels / 255 - mean) / std).unflatten(1, (rows, -1)).unflatten(3, (columns, -1))
        patches = patches.permute(1, 3, 0, 2, 4).flatten(0, 1).flatten(1)  # (tokens, 3 patch^2)
        sizes = torch.tensor([[1, rows, columns]], device=self.device)
        latents = self.network["visual"](patches, sizes).last_hidden_state  # (tokens, channels)
        return self.network["vqmodel"].encode(latents.T.view(1, -1, rows, columns)).image_tokens

    @cached_property
    def _files(self) -> Network:
        with naming(self.folder):
            return vision_network(self.config)


def vision_network(config: dict) -> Network:
    """Return the networks of a config.json; ValueError for an entry that cannot be used."""
    from transformers import GlmImageVisionConfig, GlmImageVisionModel, GlmImageVQVAEConfig
    from transformers.models.glm_image.modeling_glm_image import GlmImageVQVAE

    sections = [config.get(name) or {} for name in ("vision_config", "vq_config")]
    try:
        visual, quantiser = GlmImageVisionConfig(**sections[0]), GlmImageVQVAEConfig(**sections[1])
    except (StrictDataclassError, TypeError) as error:
        shown = " ".join(str(error).split())
        raise ValueError(f"config.json: vision_config or vq_config: {shown}") from error
    require_values(visual.to_dict(), {"spatial_merge_size": (1,)})
    with torch.device("meta"):
        module = nn.ModuleDict(
            {"visual": GlmImageVisionModel(visual), "vqmodel": GlmImageVQVAE(quantiser)}
        )
    keys = {f"model.{name}": Slot(name) for name, _ in module.named_parameters()}
    return Network(module, keys, _OTHERS)


def glm_codebook(folder: Path) -> Tensor:
    """Return the latents of the codes (codes, width), fp32, of length 1 as the quantiser has them.

    Raises:
        ValueError: the folder has no such weights.
    """
    for _, tensor in read_tensors(weight_files(folder), _CODEBOOK):
        return F.normalize(tensor.float(), dim=-1)
    raise ValueError(f"{folder}: missing key {_CODEBOOK}")
