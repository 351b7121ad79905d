"""The target models of configs/targets.py, ready to be opened."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from configs.targets import TARGETS as ENTRIES
from models.base import TargetModel, TargetOptions
from models.codecs.codec import Codec
from models.files.folders import checkpoint_folder
from models.targets.family import Family

TARGETS: dict[str, Callable[[Path, TargetOptions], TargetModel]] = {
    name: partial(resolve_name(entry.load), **entry.arguments) for name, entry in ENTRIES.items()
}
FAMILIES: dict[str, Family] = {
    name: resolve_name(entry.family)(**entry.arguments)
    if entry.arguments
    else resolve_name(entry.family)
    for name, entry in ENTRIES.items()
}


def load_target(name: str, path: str, options: TargetOptions) -> TargetModel:
    """Load the target `name` from a folder or hub id; ValueError lists the names if unknown."""
    if name not in TARGETS:
        raise ValueError(f"--model: {name!r} is unknown; allowed: {', '.join(TARGETS)}")
    return TARGETS[name](checkpoint_folder(path, "--model_path"), options)


def load_codec(name: str, path: str, options: TargetOptions) -> Codec:
    """Load the codec of the target `name` from a folder or hub id, without its transformer."""
    return FAMILIES[name].codec(checkpoint_folder(path, "--model_path"), options)
