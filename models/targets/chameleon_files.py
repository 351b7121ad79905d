"""The files of a Chameleon checkpoint, looked at without loading the model."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from models.base import ImageVocab, TargetOptions
from models.codecs.vqgan import vqgan_weights
from models.codecs.vqgan_config import VqganConfig, json_config, read_config
from models.codecs.vqgan_layout import (
    build_vqmodel,
    layout_faults,
    stored_shapes,
    taming_name,
    trained_shapes,
)
from models.files.folders import given_folder
from models.files.places import BUNDLED_VQGAN, VQGAN_CONFIG, find_text, find_tokenizer, find_vqgan
from models.files.weights import Network, folder_shapes, read_json
from models.targets.chameleon import (
    FRAME,
    Chameleon,
    ChameleonVocab,
    chameleon_network,
    chameleon_spec,
    check_sizes,
    drafter_spec,
    load_images,
    load_tokenizer,
)
from models.targets.family import Checked, Family
from models.targets.lumina_mgpt import ROW_END, LuminaMgpt


def network(config: dict) -> Network:
    """The transformer of a config.json; its `vq_config`, if any, says how many codes the head scores."""
    codes = json_config({"vq_config": {}} | config, "config.json").n_embed
    return chameleon_network(chameleon_spec(config), ImageVocab(0, codes))


def check_text(folder: Path, options: TargetOptions, frame: tuple[str, ...] = FRAME) -> Checked:
    """The text tokenizer can be read, has the tokens of a prompt's frame and names the image codes in order."""
    path = find_text(folder, _given(options))
    vocab = ChameleonVocab(load_tokenizer(path))
    for name in frame:
        _ = vocab[name]
    first, size = vocab.image.first_id, vocab.image.size
    return Checked(f"{path}: {len(vocab.ids)} ids, image codes {first} to {first + size - 1}")


def check_vqgan(folder: Path, options: TargetOptions) -> Checked:
    """The VQGAN's weights fit its configuration."""
    home = find_vqgan(folder, _given(options))
    config = vqgan_config(folder, home)
    name, shapes = _bundled_shapes(folder) if home is None else _own_shapes(home)
    with torch.device("meta"):
        model = build_vqmodel(config)
    if faults := layout_faults(shapes, model, partial(taming_name, levels=len(config.ch_mult))):
        raise ValueError(f"{name}: " + "; ".join(faults))
    count = sum(parameter.numel() for parameter in model.parameters())
    side = f"{config.resolution} x {config.resolution} pixels"
    return Checked(
        f"{name}: {config.n_embed} codes, {side}, {count / 1e6:.1f} M parameters", 4 * count
    )


def check_agreement(folder: Path, options: TargetOptions) -> Checked:
    """Text tokenizer, VQGAN and transformer have the same image codes."""
    files = find_tokenizer(folder, _given(options))
    codes, spec = (
        vqgan_config(folder, files.vqgan).n_embed,
        chameleon_spec(read_json(folder / "config.json")),
    )
    check_sizes(files, ChameleonVocab(load_tokenizer(files.text)), codes, spec.vocab)
    return Checked("text tokenizer, VQGAN and config.json belong together")


def _given(options: TargetOptions) -> Path | None:
    return given_folder(options.tokenizer_path, "--tokenizer_path", download=False)


def vqgan_config(folder: Path, home: Path | None) -> VqganConfig:
    """The sizes in a VQGAN's folder `home`, or in the checkpoint's config.json."""
    if home is None:
        return json_config(read_json(folder / "config.json"), str(folder / "config.json"))
    return read_config(home / VQGAN_CONFIG)


def codebook(folder: Path, options: TargetOptions) -> Tensor:
    """Latents of the image codes, (codes, width), fp32."""
    home = find_vqgan(folder, given_folder(options.tokenizer_path, "--tokenizer_path"))
    return load_images(folder, home, torch.device("cpu")).codebook


def _own_shapes(home: Path) -> tuple[str, dict[str, tuple[int, ...]]]:
    path = vqgan_weights(home)
    return str(path), stored_shapes(path)


def _bundled_shapes(folder: Path) -> tuple[str, dict[str, tuple[int, ...]]]:
    shapes = folder_shapes(folder).items()
    inside = {
        key.removeprefix(BUNDLED_VQGAN): shape
        for key, shape in shapes
        if key.startswith(BUNDLED_VQGAN)
    }
    return f"{folder}, weights {BUNDLED_VQGAN}*", trained_shapes(inside)


CHAMELEON = Family(
    network,
    drafter_spec,
    {"text tokenizer": check_text, "image tokenizer": check_vqgan},
    Chameleon.codec,
    codebook,
    check_agreement,
)
LUMINA_MGPT = replace(
    CHAMELEON,
    checks=CHAMELEON.checks | {"text tokenizer": partial(check_text, frame=(*FRAME, ROW_END))},
    codec=LuminaMgpt.codec,
)
