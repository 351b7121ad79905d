"""The list of target models."""

from collections.abc import Callable
from pathlib import Path

from models.base import TargetModel, TargetOptions
from models.chameleon import Chameleon
from models.chameleon_files import CHAMELEON
from models.family import Family
from models.weights import checkpoint_folder

TARGETS: dict[str, Callable[[Path, TargetOptions], TargetModel]] = {"tiny": Chameleon.load, "anole": Chameleon.load}
FAMILIES: dict[str, Family] = {"tiny": CHAMELEON, "anole": CHAMELEON}


def load_target(name: str, path: str, options: TargetOptions) -> TargetModel:
    """The target `name` from a folder or hub id; ValueError lists the names."""
    if name not in TARGETS:
        raise ValueError(f"--model: {name!r} is unknown; allowed: {', '.join(TARGETS)}")
    return TARGETS[name](checkpoint_folder(path, "--model_path"), options)
