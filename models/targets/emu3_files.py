"""The files of an Emu3-Gen checkpoint, looked at without loading the model."""

from pathlib import Path

import torch
from torch import Tensor

from models.base import ImageVocab, TargetOptions
from models.codecs.movq import load_movq, movq_sizes
from models.codecs.movq_files import movq_entries
from models.files.network import Network
from models.files.weights import naming
from models.targets.emu3 import Emu3, Emu3Vocab, read_prompts
from models.targets.emu3_network import emu3_entries, emu3_network, emu3_spec
from models.targets.family import Checked, Family, ImageSequence, Part
from models.targets.llama_spec import llama_drafter_spec
from support.json_files import read_object

_CPU = torch.device("cpu")


def network(config: dict) -> Network:
    """Return the transformer of a config.json, its head for as many codes as `vq_config` says.

    Which ids are those is in the tokenizer; a head for the last ones has the same size.
    """
    spec, codes = emu3_spec(config), movq_sizes(config.get("vq_config")).n_embed
    return emu3_network(spec, ImageVocab(max(0, spec.vocab - codes), codes))


def check_text(folder: Path, options: TargetOptions) -> Checked:
    """Check that the tokenizer has the tokens around a prompt and the image codes."""
    words = Emu3Vocab(folder)
    first, size = words.image.first_id, words.image.size
    text = f"{words.path}: {words.tokenizer.get_vocab_size()} ids"
    return Checked(f"{text}, image codes {first} to {first + size - 1}")


def check_codec(folder: Path, options: TargetOptions) -> Checked:
    """Check that the codec's weights are there and fit a network."""
    config = read_object(folder / "config.json")
    with naming(folder):
        emu3_entries(config)  # of this family
    images = load_movq(folder, config, _CPU)
    count = sum(parameter.numel() for parameter in images.model.parameters())
    text = f"{folder}, weights vqmodel.*: {images.config.n_embed} codes"
    return Checked(f"{text}, {count / 1e6:.1f} M parameters", 4 * count)


def check_compatible(folder: Path, options: TargetOptions) -> Checked:
    """Check that tokenizer, codec and transformer fit together and an image finds room."""
    config = read_object(folder / "config.json")
    with naming(folder):
        spec = emu3_spec(config)
    prompts = read_prompts(folder, spec, load_movq(folder, config, _CPU), options)
    grid = prompts.grid
    return Checked(
        f"tokenizer, image codec and config.json fit together; an image is {grid.rows} x "
        f"{grid.columns} tokens and {grid.rows} row ends",
        sequence=ImageSequence(grid, prompts.shortest),
    )


def codes(folder: Path, options: TargetOptions) -> int:
    """Return the number of image codes."""
    with naming(folder):
        return movq_sizes(movq_entries(folder, read_object(folder / "config.json"))).n_embed


def codebook(folder: Path, options: TargetOptions) -> Tensor:
    """Return the latents of the image codes, (codes, width), fp32."""
    return load_movq(folder, read_object(folder / "config.json"), _CPU).codebook


EMU3 = Family(
    spec=emu3_spec,
    network=network,
    drafter=llama_drafter_spec,
    parts={"text tokenizer": Part(check_text), "image codec": Part(check_codec)},
    compatible=check_compatible,
    codes=codes,
    codec=Emu3.codec,
    codebook=codebook,
    entries=emu3_entries,
)
