"""What an interrupted training continues from."""

import os
import pickle
from pathlib import Path
from typing import Any

import torch


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that an interruption leaves either the old or the new file, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load_state(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint written by `save_state`; None when there is none.

    Raises:
        ValueError: the file exists but cannot be read.
    """
    if not path.exists():
        return None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: damaged checkpoint; delete it to start again") from error
