"""The files of a Janus-Pro checkpoint, looked at without loading the model."""

from pathlib import Path

import torch
from torch import Tensor

from models.base import ImageGrid, TargetOptions
from models.files.names import HUB_TOKENIZER
from models.files.weights import naming
from models.targets.family import Checked, Family, ImageSequence, Part
from models.targets.janus import JanusPro, read_images, read_prompts, read_words
from models.targets.janus_config import JanusConfig, janus_config
from models.targets.janus_network import janus_entries, janus_network, janus_spec
from models.targets.llama_spec import llama_drafter_spec
from support.json_files import read_object


def check_text(folder: Path, options: TargetOptions) -> Checked:
    """Check that the tokenizer has the tokens around a prompt."""
    return Checked(f"{folder / HUB_TOKENIZER}: {read_words(folder).get_vocab_size()} ids")


def check_codec(folder: Path, options: TargetOptions) -> Checked:
    """Check that the codec's weights are there and fit a network."""
    images = read_images(folder, read_object(folder / "config.json"), torch.device("cpu"))
    count = sum(parameter.numel() for parameter in images.model.parameters())
    side, prefix = images.config.resolution, _config(folder).keys.codec
    text = f"{folder}, weights {prefix}*: {images.config.n_embed} codes, {side} x {side} pixels"
    return Checked(f"{text}, {count / 1e6:.1f} M parameters", 4 * count)


def check_compatible(folder: Path, options: TargetOptions) -> Checked:
    """Check that the tokenizer's ids are ids of the transformer."""
    config, parsed = read_object(folder / "config.json"), _config(folder)
    prompts = read_prompts(folder, janus_spec(config), (parsed.side, parsed.side))
    highest = max(prompts.tokenizer.get_vocab().values())
    if highest >= parsed.decoder["vocab_size"]:
        raise ValueError(
            f"{folder / HUB_TOKENIZER} names ids up to {highest}; config.json has "
            f"{parsed.decoder['vocab_size']} ids"
        )
    return Checked(
        "tokenizer, image codec and config.json fit together; an image is "
        f"{parsed.side} x {parsed.side} tokens",
        sequence=ImageSequence(ImageGrid(parsed.side, parsed.side), prompts.shortest),
    )


def _config(folder: Path) -> JanusConfig:
    with naming(folder):
        return janus_config(read_object(folder / "config.json"))


def codes(folder: Path, options: TargetOptions) -> int:
    """Return the number of image codes."""
    return _config(folder).codes


def codebook(folder: Path, options: TargetOptions) -> Tensor:
    """Return the latents of the image codes as the decoder reads them, (codes, width), fp32."""
    return read_images(folder, read_object(folder / "config.json"), torch.device("cpu")).codebook


JANUS_PRO = Family(
    spec=janus_spec,
    network=janus_network,
    drafter=llama_drafter_spec,
    parts={"text tokenizer": Part(check_text), "image codec": Part(check_codec)},
    compatible=check_compatible,
    codes=codes,
    codec=JanusPro.codec,
    codebook=codebook,
    entries=janus_entries,
)
