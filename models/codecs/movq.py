"""Emu3's MoVQ (arXiv 2409.18869): transformers' network, weights of a checkpoint.

The network is one for videos: it reads an image as four equal frames, and draws four, of which the
first is the image. Only its convolutions over time see the four; those in the plane, which take
the memory and the time, see one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.codecs.movq_files import movq_entries, movq_weights
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_config import VqganConfig
from models.files.entries import require_values
from models.files.gather import all_of, shape_faults
from models.files.network import refuse_faults

if TYPE_CHECKING:
    from transformers import Emu3VQVAE

_SIDE = 720  # pixels of the usual image
_COUNTER = "num_batches_tracked"  # a training statistic of the batch norms
_BUILT = {
    "double_latent": (False,),
    "in_channels": (3,),
    "out_channels": (3,),
    "num_attention_heads": (1,),
}


class MoVQ(ImageTokenizer):
    """Pixels <-> codes by Emu3's network."""

    model: Emu3VQVAE

    def _encode(self, pixels: Tensor) -> Tensor:
        video = self.model.encoder(pixels[:, None])
        hidden = self.model.quant_conv(video.transpose(1, 2))  # (n, embed_dim, 1, h, w)
        return hidden.flatten(2).transpose(1, 2)

    def _decode(self, codes: Tensor) -> Tensor:
        latents = self.codebook[codes].permute(2, 0, 1)[None, :, None]  # (1, embed_dim, 1, h, w)
        spread = self.model.post_quant_conv(latents)
        return self._to_bytes(
            self.model.decoder(spread.transpose(1, 2), latents.transpose(1, 2))[0]
        )


def movq_sizes(given: object) -> VqganConfig:
    """Return the sizes in `vq_config` of a config.json; absent entries are transformers' defaults.

    Raises:
        ValueError: naming an entry that is not allowed.
    """
    from transformers import Emu3VQVAEConfig

    given = given if isinstance(given, dict) else {}
    require_values(given, _BUILT, "vq_config.")
    try:
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
    except Exception as error:  # the library's own checks raise several types
        why = str(error).splitlines()[0]
        raise ValueError(f"config.json: vq_config: {why}") from error


def load_movq(folder: Path, config: Mapping[str, object], device: torch.device) -> MoVQ:
    """Load the codec in fp32 from a checkpoint's weights.

    Args:
        folder: the checkpoint's.
        config: its config.json.
        device: where the network goes.

    Raises:
        ValueError: naming the folder and every key that does not fit, or the damaged file.
    """
    from transformers import Emu3VQVAE, Emu3VQVAEConfig

    entries, (source, stored) = all_of(
        lambda: movq_entries(folder, config), lambda: movq_weights(folder)
    )
    sizes = movq_sizes(entries)
    with torch.device("meta"):  # no memory for weights that the file's replace
        model = Emu3VQVAE(Emu3VQVAEConfig(**entries))
    shapes, expected = (
        {key: tuple(value.shape) for key, value in weights.items() if not key.endswith(_COUNTER)}
        for weights in (stored, model.state_dict())
    )
    refuse_faults(shape_faults(shapes, expected), source)
    state = {
        key: torch.tensor(0) if key.endswith(_COUNTER) else stored[key].to(torch.float32, copy=True)
        for key in model.state_dict()
    }
    model.load_state_dict(state, assign=True)
    _take_one_frame(model)
    return MoVQ(model.to(device), sizes, source=source)


def _take_one_frame(model: Emu3VQVAE) -> None:
    """Let the encoder repeat a frame before its first convolution over time, not at its input, and
    the decoder keep the first frame after its last one.

    Convolutions over time see earlier frames only, so the first does not depend on the others.
    """
    if (frames := model.config.temporal_downsample_factor) > 1:
        model.encoder.time_conv[0].register_forward_pre_hook(
            lambda _, inputs: (inputs[0].repeat_interleave(frames, 2),)
        )
        model.decoder.time_conv[-1].register_forward_hook(lambda _, __, video: video[:, :, :1])
