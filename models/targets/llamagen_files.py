"""The files of a LlamaGen checkpoint, looked at without loading the model."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from models.base import ImageGrid, TargetOptions
from models.codecs.llamagen_vq import CODEBOOK, load_llamagen_vq, read_vq
from models.files.folders import checkpoint_folder
from models.targets.family import Checked, Family, ImageSequence, Part
from models.targets.llamagen import LlamaGen, given_path, refuse_other
from models.targets.llamagen_network import drafter_spec, llamagen_network, llamagen_spec
from models.targets.text_encoder import check_encoder
from support.json_files import read_object

_TEXT, _VQ = "text_encoder_path", "vq_path"


def check_text(folder: Path, options: TargetOptions) -> Checked:
    """Check that the text encoder is a T5 with all its weights and a tokenizer."""
    home = _text_home(options)
    width, count = check_encoder(home)
    text = f"{home}: T5 of width {width}, {count / 1e6:.1f} M parameters of the encoder"
    return Checked(text, 2 * count)


def check_vq(folder: Path, options: TargetOptions, side: int) -> Checked:
    """Check that the file of image codes fits a network."""
    path = given_path(options, _VQ)
    images = load_llamagen_vq(Path(path), side, torch.device("cpu"))
    count = sum(parameter.numel() for parameter in images.model.parameters())
    text = f"{path}: {images.config.n_embed} codes, {count / 1e6:.1f} M parameters"
    return Checked(text, 4 * count)


def check_compatible(folder: Path, options: TargetOptions) -> Checked:
    """Check that text encoder and image codes have the sizes that config.json expects."""
    home, path, config = (
        _text_home(options),
        given_path(options, _VQ),
        read_object(folder / "config.json"),
    )
    width = read_object(home / "config.json")["d_model"]
    refuse_other(_TEXT, str(home), width, folder, config, "caption_dim")
    refuse_other(_VQ, path, len(codebook(folder, options)), folder, config, "vocab_size")
    image = llamagen_spec(config).image_rope
    return Checked(
        "text encoder, image tokenizer and config.json fit together",
        sequence=ImageSequence(ImageGrid(image.side, image.side), image.condition),
    )


def _text_home(options: TargetOptions) -> Path:
    return checkpoint_folder(given_path(options, _TEXT), f"--{_TEXT}", download=False)


def codes(folder: Path, options: TargetOptions) -> int:
    """Return the number of image codes."""
    return llamagen_spec(read_object(folder / "config.json")).vocab


def codebook(folder: Path, options: TargetOptions) -> Tensor:
    """Return the latents of the image codes, (codes, width), fp32, as they are stored.

    LANTERN's published table is of these, not of the vectors of length 1 that the decoder reads.
    """
    path = given_path(options, _VQ)
    tensors = read_vq(Path(path), CODEBOOK)
    if CODEBOOK not in tensors:
        raise ValueError(f"--{_VQ}: {path}: missing key {CODEBOOK}")
    return tensors[CODEBOOK].float()


def llamagen_family(side: int) -> Family:
    """Return the family of the stage with `side` codes per row and column."""
    return Family(
        spec=partial(llamagen_spec, side=side),
        network=partial(llamagen_network, side=side),
        drafter=drafter_spec,
        parts={
            "text encoder": Part(check_text, _TEXT),
            "image tokenizer": Part(partial(check_vq, side=side), _VQ),
        },
        compatible=check_compatible,
        codes=codes,
        codec=partial(LlamaGen.codec, side=side),
        codebook=codebook,
    )
