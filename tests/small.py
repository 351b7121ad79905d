"""Settings and layouts of small random checkpoints (scripts/checkpoints)."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from configs.model import EngineSettings
from configs.schema import SamplingSettings
from models.registry import load_target
from models.target import TargetModel
from runs.session import Session, open_session
from scripts.checkpoints.chameleon import Sizes, size_words
from scripts.checkpoints.parts import OPTIONS

LUMINA = Sizes(halvings=4, words=size_words(4), positions=260)


def write_shards(folder: Path, suffix: str) -> list[str]:
    """Replace the single weight file by two shards with an index."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = [f"{stem}-0000{i}-of-00002.{suffix}" for i in (1, 2)]
    placed = {key: names[i % 2] for i, key in enumerate(state)}
    for name in names:
        part = {key: value for key, value in state.items() if placed[key] == name}
        save = save_file if suffix == "safetensors" else torch.save
        save(part, folder / name)
    index = {"metadata": {}, "weight_map": placed}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return names


def store_weights(folder: Path, kind: str) -> Path:
    """Store a network's weights as files of a kind; returns one of them.

    kind: safetensors, bin, either after "sharded", or "old bin", as torch wrote before 1.6.
    """
    single, binary = folder / "model.safetensors", folder / "pytorch_model.bin"
    if kind.startswith("sharded"):
        return folder / write_shards(folder, kind.split()[1])[0]
    if kind == "safetensors":
        return single
    torch.save(load_file(single), binary, _use_new_zipfile_serialization=kind == "bin")
    single.unlink()
    return binary


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in state.items()}


GUIDANCE = {
    "glm_image": 1.0,
    "image_gpt": 1.0,
    "janus_pro": 5.0,
    "lumina_mgpt2": 4.0,
}  # elsewhere 3
FLAGS = {
    "emu3": {"target_size": "40x32", "negative_prompt": "lowres, blurry."},
    "emu3_5": {"target_size": "80x64"},
    "glm_image": {"target_size": "96x64"},
    "lumina_mgpt": {"target_size": "64"},
    "lumina_mgpt2": {"target_size": "32"},
}


def small_settings(
    folder: Path, dtype: str = "fp64", model: str = "tiny", **sampling: float
) -> EngineSettings:
    """Return the settings of a small checkpoint, with its drafter."""
    return EngineSettings(
        model=model,
        model_path=str(folder),
        dtype=dtype,
        device="cpu",
        sampling=SamplingSettings(**{"cfg": GUIDANCE.get(model, 3.0), **sampling}),
        **FLAGS.get(model, {}),
    )


def loaded(folder: Path, model: str = "tiny", **options: object) -> TargetModel:
    """Load a target in fp32."""
    return load_target(model, str(folder), replace(OPTIONS, **options))


def open_lumina(folder: Path, size: str) -> Session:
    """Return settings for a checkpoint of the sizes LUMINA in fp64 and images of so many pixels."""
    return open_session(replace(small_settings(folder), model="lumina_mgpt", target_size=size))
