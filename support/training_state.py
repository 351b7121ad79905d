"""What a training keeps on disk: the checkpoint from which it continues, and its log."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from configs.downloads import failed_download
from configs.fields import SettingsError, mismatch
from support.durable import append_bytes, encode_lines, new_file, remove_halves, replace_file
from support.json_lines import Line, read_lines


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; a kill or a full disk leaves the one before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_halves(
        path.parent, re.escape(path.name)
    )  # checkpoints are large, and trainings are killed often
    with new_file(path) as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch's writer raises it on top of the file's own error
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


def load_state(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint that `save_state` wrote; None if there is no file."""
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make the unpickler raise errors of any kind
        unread = f"a file that cannot be read ({type(error).__name__})"
        raise damaged_state(path, failed_download(path) or unread) from error
    if not isinstance(state, dict):
        raise damaged_state(path, f"a {type(state).__name__}")
    return state


def damaged_state(path: Path, got: str) -> SettingsError:
    """Return the error of a checkpoint that is damaged or another program's."""
    return mismatch(str(path), got, "a checkpoint of this training", "Delete it to start again.")


class JsonLog:
    """A file of JSON lines that grows; what is written is also printed, or told in words."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, *words: str, **values: Any) -> Line:
        """Add a line with the values and the time, in seconds since 1970; returns it.

        words: what is printed instead of the line.
        """
        line = {"time": round(time.time(), 2), **values}
        text = json.dumps(line)
        print(
            *(words or (text,)), flush=True
        )  # first, since a full disk may take the file but not the figures
        append_bytes(self.path, f"{text}\n".encode())
        return line

    @property
    def lines(self) -> list[Line]:
        """What is in the file; also NaN: a loss that diverged is what the log is read for."""
        return read_lines(self.path, "step", finite=False)

    def keep(self, wanted: Callable[[Line], bool]) -> None:
        """Drop all other lines, which will be made again."""
        kept = [line for line in self.lines if wanted(line)]
        replace_file(self.path, encode_lines(kept, finite=False))
