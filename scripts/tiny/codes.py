"""Files of image codes that are written step by step."""

import json
from pathlib import Path

import numpy as np

from support.durable import replace_file


def open_codes(path: Path, shape: tuple[int, int]) -> tuple[np.memmap, int]:
    """Open a file of uint16 codes (images, tokens); returns it and how many images it holds.

    Raises:
        ValueError: the file exists with another shape.
    """
    done = path.with_suffix(".done.json")
    if not path.exists() or not done.exists():
        return np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=shape), 0
    codes = np.lib.format.open_memmap(path, mode="r+")
    if codes.shape != shape or codes.dtype != np.uint16:
        raise ValueError(
            f"{path}: found {codes.dtype} {codes.shape}, allowed: uint16 {shape}; "
            "delete the file to start again"
        )
    return codes, json.loads(done.read_text(encoding="utf-8"))["images"]


def write_progress(path: Path, images: int) -> None:
    """Record how many images the file holds."""
    replace_file(path.with_suffix(".done.json"), json.dumps({"images": images}).encode())
