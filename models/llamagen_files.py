"""The files of a LlamaGen checkpoint, looked at without loading the model."""

from pathlib import Path

import torch
from torch import Tensor

from models.base import TargetOptions
from models.family import Checked, Family
from models.llamagen import drafter_spec, llamagen_network, llamagen_spec
from models.llamagen_vq import load_llamagen_vq
from models.text_encoder import check_kind
from models.weights import checkpoint_folder, read_json, weight_files


def check_text(folder: Path, options: TargetOptions) -> Checked:
    """The text encoder is a T5 as wide as the checkpoint's captions, with weights; they are not compared with it."""
    flag, path = "--text_encoder_path", options.text_encoder_path
    home = checkpoint_folder(path, flag, download=False)
    check_kind(str(home))
    width, wanted = read_json(home / "config.json").get("d_model"), read_json(folder / "config.json").get("caption_dim")
    if width != wanted:
        raise ValueError(f"{flag}: {home} has {width}, {folder / 'config.json'} has caption_dim {wanted}")
    size = sum(file.stat().st_size for file in weight_files(home))
    return Checked(f"{home}: T5 of width {width}, {size / 2**30:.2f} GiB on the disk")


def check_vq(folder: Path, options: TargetOptions) -> Checked:
    """The file of image codes fits a network and the checkpoint's vocabulary."""
    config = read_json(folder / "config.json")
    images = load_llamagen_vq(Path(options.vq_path), llamagen_spec(config).image_rope.side, torch.device("cpu"))
    if images.config.n_embed != config["vocab_size"]:
        raise ValueError(f"--vq_path: {images.config.n_embed} codes, config.json has vocab_size {config['vocab_size']}")
    count = sum(parameter.numel() for parameter in images.model.parameters())
    return Checked(f"{options.vq_path}: {images.config.n_embed} codes, {count / 1e6:.1f} M parameters", 4 * count)


def codebook(folder: Path, options: TargetOptions) -> Tensor:
    """Latents of the image codes, (codes, width), of length 1, fp32."""
    side = llamagen_spec(read_json(folder / "config.json")).image_rope.side
    return load_llamagen_vq(Path(options.vq_path), side, torch.device("cpu")).codebook


LLAMAGEN = Family(llamagen_network, drafter_spec, {"text encoder": check_text, "image tokenizer": check_vq}, codebook)
