"""The list of target models."""

from collections.abc import Callable
from pathlib import Path

import torch

from models.base import TargetModel
from models.chameleon import Chameleon
from models.chameleon_files import CHAMELEON
from models.family import Family
from models.weights import checkpoint_folder

# Checkpoint folder, dtype, device, folder of the tokenizer if it lies elsewhere -> target.
Builder = Callable[[Path, torch.dtype, torch.device, Path | None], TargetModel]
TARGETS: dict[str, Builder] = {"tiny": Chameleon.load, "anole": Chameleon.load}
FAMILIES: dict[str, Family] = {"tiny": CHAMELEON, "anole": CHAMELEON}


def load_target(
    name: str, path: str, dtype: torch.dtype, device: torch.device, tokenizer: str | None = None
) -> TargetModel:
    """The target `name` from a folder or hub id, with the tokenizer of another folder or hub id if one is given;
    ValueError lists the names."""
    if name not in TARGETS:
        raise ValueError(f"--model: {name!r} is unknown; allowed: {', '.join(TARGETS)}")
    elsewhere = None if tokenizer is None else checkpoint_folder(tokenizer, "--tokenizer_path")
    return TARGETS[name](checkpoint_folder(path, "--model_path"), dtype, device, elsewhere)
