"""Libraries and weights that metrics need and users may not have."""

import importlib
from pathlib import Path
from types import ModuleType

from configs.evaluation import SOURCES
from eval.metrics.base import Unavailable
from eval.provenance import checkpoint_id
from models.folders import checkpoint_folder


def library(module: str, package: str) -> ModuleType:
    """An optional library; Unavailable with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{package} is not installed: pip install -r requirements-metrics.txt ({error})") from error


def require_file(flag: str, path: str) -> Path:
    """The file that a flag names; Unavailable with the place where users get it."""
    if not Path(path).is_file():
        raise Unavailable(f"--{flag} {path}: no such file; {SOURCES[flag]}")
    return Path(path)


def require_weights(flag: str, path: str) -> Path:
    """A file, a folder, or the snapshot of a hub id (owner/name); Unavailable if it is none."""
    if Path(path).is_file():
        return Path(path)
    try:
        return checkpoint_folder(path, f"--{flag}")
    except ValueError as error:
        raise Unavailable(f"{error}; {SOURCES[flag]}") from error


def weights_label(place: Path) -> str:
    """Name and fingerprint of weights, for the tables."""
    return f"{place.name} [{checkpoint_id(place)}]"
