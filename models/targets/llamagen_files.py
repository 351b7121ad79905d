"""The files of a LlamaGen checkpoint, looked at without loading the model."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from models.base import TargetOptions
from models.codecs.llamagen_vq import CODEBOOK, load_llamagen_vq, read_vq
from models.files.folders import checkpoint_folder
from models.files.headers import read_header
from models.files.places import T5_TOKENIZERS
from models.files.weights import read_json, weight_files
from models.targets.family import Checked, Family
from models.targets.llamagen import LlamaGen, drafter_spec, llamagen_network, llamagen_spec
from models.targets.text_encoder import check_kind


def check_text(folder: Path, options: TargetOptions) -> Checked:
    """The text encoder is a T5 as wide as the checkpoint's captions, with a tokenizer and weights that can be read;
    they are not compared with it."""
    flag, path = "--text_encoder_path", options.text_encoder_path
    home = checkpoint_folder(path, flag, download=False)
    check_kind(str(home))
    width, wanted = (
        read_json(home / "config.json").get("d_model"),
        read_json(folder / "config.json").get("caption_dim"),
    )
    if width != wanted:
        raise ValueError(
            f"{flag}: {home} has {width}, {folder / 'config.json'} has caption_dim {wanted}"
        )
    if not any((home / name).is_file() for name in T5_TOKENIZERS):
        raise ValueError(f"{flag}: {home} has no tokenizer: none of {', '.join(T5_TOKENIZERS)}")
    stored = [item for file in weight_files(home) for item in read_header(file).items()]
    count = sum(info.count for key, info in stored if key.startswith(("encoder.", "shared.")))
    return Checked(
        f"{home}: T5 of width {width}, {count / 1e6:.1f} M parameters of the encoder", 2 * count
    )


def check_vq(folder: Path, options: TargetOptions) -> Checked:
    """The file of image codes fits a network and the checkpoint's vocabulary."""
    config = read_json(folder / "config.json")
    images = load_llamagen_vq(
        Path(options.vq_path), llamagen_spec(config).image_rope.side, torch.device("cpu")
    )
    if images.config.n_embed != config["vocab_size"]:
        raise ValueError(
            f"--vq_path: {images.config.n_embed} codes, config.json has vocab_size {config['vocab_size']}"
        )
    count = sum(parameter.numel() for parameter in images.model.parameters())
    return Checked(
        f"{options.vq_path}: {images.config.n_embed} codes, {count / 1e6:.1f} M parameters",
        4 * count,
    )


def codebook(folder: Path, options: TargetOptions) -> Tensor:
    """Latents of the image codes, (codes, width), fp32, as they are stored: LANTERN's published table is of these, not
    of the vectors of length 1 that the decoder reads."""
    found = read_vq(Path(options.vq_path), CODEBOOK)
    if CODEBOOK not in found:
        raise ValueError(f"--vq_path: {options.vq_path}: missing key {CODEBOOK}")
    return found[CODEBOOK].float()


def llamagen_family(side: int) -> Family:
    """The family of the stage with `side` codes per row and column."""
    checks = {"text encoder": check_text, "image tokenizer": check_vq}
    return Family(
        partial(llamagen_network, side=side),
        drafter_spec,
        checks,
        partial(LlamaGen.codec, side=side),
        codebook,
    )
