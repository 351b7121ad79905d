"""Emu3's MoVQ (arXiv 2409.18869): transformers' network, weights of a checkpoint.

The network is one for videos: it reads an image as four equal frames, and draws four, of which the
first is the image. Only its convolutions over time see the four; those in the plane, which take
the memory and the time, see one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.fields import refusing
from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import VqganFiles
from models.files.entries import library_errors, require_values
from models.files.network import Network, Slot
from models.files.weights import folder_shapes, weight_files

_PREFIXES = ("model.vqmodel.", "vqmodel.")  # of today's transformers, and of the public files
_COUNTER = "num_batches_tracked"  # a training statistic of the batch norms, not read
_SIDE = 720  # pixels of the usual image
_BUILT = {
    "double_latent": (False,),
    "in_channels": (3,),
    "out_channels": (3,),
    "num_attention_heads": (1,),
}


class MoVQ(ImageTokenizer):
    """Emu3's image tokenizer, which takes an image as a video of one frame."""

    def _encode(self, pixels: Tensor) -> Tensor:
        video = self.model.encoder(pixels[:, None])  # of (n, 1, 3, h, w): one frame
        hidden = self.model.quant_conv(video.transpose(1, 2))  # (n, embed_dim, 1, h, w)
        return hidden.flatten(2).transpose(1, 2)

    def decode_one(self, codes: Tensor) -> Tensor:
        latents = self.codebook[codes].permute(2, 0, 1)[None, :, None]  # (1, embed_dim, 1, h, w)
        spread = self.model.post_quant_conv(latents)
        return self._to_bytes(
            self.model.decoder(spread.transpose(1, 2), latents.transpose(1, 2))[0]
        )


def movq_sizes(given: object) -> VqganConfig:
    """Return the sizes in `vq_config` of a config.json, by default those of transformers."""
    from transformers import Emu3VQVAEConfig

    given = given if isinstance(given, dict) else {}
    require_values(given, _BUILT, "vq_config.")
    with library_errors("config.json: vq_config"):
        config = Emu3VQVAEConfig(**given)
        factors = tuple(config.channel_multiplier)
        scale = 2 ** (len(factors) - 1)  # pixels per token
        return VqganConfig(
            ch=config.base_channels,
            ch_mult=factors,
            num_res_blocks=config.num_res_blocks,
            z_channels=config.latent_channels,
            embed_dim=config.embed_dim,
            n_embed=config.codebook_size,
            resolution=_SIDE // scale * scale,
        )


@dataclass(frozen=True)
class MovqFiles(VqganFiles):
    """Files of Emu3's image tokenizer."""

    entries: dict = field(default_factory=dict)  # of transformers' configuration

    def build(self, shapes: dict[str, tuple[int, ...]]) -> Network:
        from transformers import Emu3VQVAE, Emu3VQVAEConfig

        with library_errors("config.json: vq_config"), torch.device("meta"):
            model = Emu3VQVAE(Emu3VQVAEConfig(**self.entries))
        slots = {self.prefix + name: Slot(name) for name in model.state_dict()}
        counters = tuple(key for key in slots if key.endswith(_COUNTER))
        keys = {key: slot for key, slot in slots.items() if key not in counters}
        return Network(model, keys, counters, prefix=self.prefix)

    def open(self, model: nn.Module, device: torch.device) -> MoVQ:
        for name, statistic in model.named_buffers():
            if name.endswith(_COUNTER):
                # `Network.read` skips it, so it holds whatever was in its memory.
                statistic.zero_()
        # Let the encoder repeat a frame before its first convolution over time, not at its input,
        # and the decoder keep the first frame after its last one. These convolutions see earlier
        # frames only, so the first does not depend on the others.
        if (frames := model.config.temporal_downsample_factor) > 1:
            model.encoder.time_conv[0].register_forward_pre_hook(
                lambda _, inputs: (inputs[0].repeat_interleave(frames, 2),)
            )
            model.decoder.time_conv[-1].register_forward_hook(lambda _, __, video: video[:, :, :1])
        return MoVQ(model.to(device), self.config)


def movq_files(folder: Path, config: Mapping[str, Any]) -> MovqFiles:
    """Return the weights of the codec of a checkpoint with this config.json."""
    keys = folder_shapes(folder)
    prefix = next((one for one in _PREFIXES if any(key.startswith(one) for key in keys)), None)
    if prefix is None:
        raise ValueError(
            f"{folder}: no image codec among the weights (keys vqmodel.*, as BAAI/Emu3-Gen-hf has "
            "them)"
        )
    with refusing(str(folder)):
        sizes = movq_sizes(config.get("vq_config"))
    source, paths = f"{folder}, weights vqmodel.*", weight_files(folder)
    return MovqFiles(source, paths, sizes, prefix, entries=config.get("vq_config") or {})
