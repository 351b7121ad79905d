"""The files of a Chameleon checkpoint, looked at without loading the model."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from models.base import ImageVocab, TargetOptions
from models.codecs.vqgan import vqgan_weights
from models.codecs.vqgan_config import VqganConfig, json_config, read_config
from models.codecs.vqgan_layout import build_fitting, stored_shapes, trained_shapes
from models.files.chameleon_parts import find_text, find_tokenizer, find_vqgan
from models.files.folders import given_folder
from models.files.names import BUNDLED_VQGAN, VQGAN_CONFIG
from models.files.network import Network
from models.files.tokenizer_file import load_tokenizer, require_tokens
from models.files.weights import folder_shapes, naming
from models.targets.chameleon import FRAME, Chameleon, ChameleonVocab, load_images
from models.targets.chameleon_network import chameleon_network, chameleon_spec, drafter_spec
from models.targets.family import Checked, Family, ImageSequence, Part
from models.targets.lumina_mgpt import ROW_END, LuminaMgpt
from support.json_files import read_object


def network(config: dict) -> Network:
    """Return the transformer of a config.json;
    the head scores as many codes as `vq_config` says.
    """
    vqgan = json_config(
        {"vq_config": {}} | config, "config.json"
    )  # the usual one where it is absent
    return chameleon_network(chameleon_spec(config), ImageVocab(0, vqgan.n_embed))


def check_text(folder: Path, options: TargetOptions, frame: tuple[str, ...] = FRAME) -> Checked:
    """Check that the text tokenizer has the tokens around a prompt and all image codes."""
    path = find_text(folder, _given(options))
    vocab = ChameleonVocab(load_tokenizer(path))
    require_tokens(vocab.tokenizer, frame, path)
    first, size = vocab.image.first_id, vocab.image.size
    return Checked(f"{path}: {len(vocab.ids)} ids, image codes {first} to {first + size - 1}")


def check_vqgan(folder: Path, options: TargetOptions) -> Checked:
    """Check that the VQGAN's weights fit its configuration."""
    home = find_vqgan(folder, _given(options))
    config = vqgan_config(folder, home)
    name, shapes = _bundled_shapes(folder) if home is None else _own_shapes(home)
    try:
        model = build_fitting(config, shapes)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    count = sum(parameter.numel() for parameter in model.parameters())
    side = f"{config.resolution} x {config.resolution} pixels"
    text = f"{name}: {config.n_embed} codes, {side}, {count / 1e6:.1f} M parameters"
    return Checked(text, 4 * count)


def check_compatible(folder: Path, options: TargetOptions, target: type[Chameleon]) -> Checked:
    """Check that text tokenizer, VQGAN and transformer fit together and an image finds room."""
    files = find_tokenizer(folder, _given(options))
    words = ChameleonVocab(load_tokenizer(files.text))
    spec = chameleon_spec(read_object(folder / "config.json"))
    vqgan = vqgan_config(folder, files.vqgan)
    with naming(folder):
        grid = target.check_parts(files, words, vqgan, spec, options)
    return Checked(
        f"text tokenizer, image tokenizer and config.json fit together; an image is "
        f"{grid.rows} x {grid.columns} tokens",
        sequence=ImageSequence(grid, target.shortest_prompt(words, grid, vqgan.downsampling)),
    )


def _given(options: TargetOptions) -> Path | None:
    return given_folder(options.tokenizer_path, "--tokenizer_path", download=False)


def vqgan_config(folder: Path, home: Path | None) -> VqganConfig:
    """Return the sizes in a VQGAN's folder `home`, or in the checkpoint's config.json."""
    if home is None:
        return json_config(read_object(folder / "config.json"), str(folder / "config.json"))
    return read_config(home / VQGAN_CONFIG)


def codes(folder: Path, options: TargetOptions) -> int:
    """Return the number of image codes."""
    return vqgan_config(folder, find_vqgan(folder, _given(options))).n_embed


def codebook(folder: Path, options: TargetOptions) -> Tensor:
    """Return the latents of the image codes, (codes, width), fp32."""
    home = find_vqgan(folder, given_folder(options.tokenizer_path, "--tokenizer_path"))
    return load_images(folder, home, torch.device("cpu")).codebook


def _own_shapes(home: Path) -> tuple[str, dict[str, tuple[int, ...]]]:
    path = vqgan_weights(home)
    return str(path), stored_shapes(path)


def _bundled_shapes(folder: Path) -> tuple[str, dict[str, tuple[int, ...]]]:
    inside = {
        key.removeprefix(BUNDLED_VQGAN): shape
        for key, shape in folder_shapes(folder).items()
        if key.startswith(BUNDLED_VQGAN)
    }
    return f"{folder}, weights {BUNDLED_VQGAN}*", trained_shapes(inside)


def chameleon_family(target: type[Chameleon], frame: tuple[str, ...]) -> Family:
    """Return the family of a class of targets whose prompts need the tokens `frame`."""
    return Family(
        spec=chameleon_spec,
        network=network,
        drafter=drafter_spec,
        parts={
            "text tokenizer": Part(partial(check_text, frame=frame)),
            "image tokenizer": Part(check_vqgan),
        },
        compatible=partial(check_compatible, target=target),
        codes=codes,
        codec=target.codec,
        codebook=codebook,
    )


CHAMELEON = chameleon_family(Chameleon, FRAME)
LUMINA_MGPT = chameleon_family(LuminaMgpt, (*FRAME, ROW_END))
