"""Files of image codes that are filled step by step."""

import json
import os
from pathlib import Path

import numpy as np


def open_codes(path: Path, shape: tuple[int, int]) -> tuple[np.memmap, int]:
    """A file of uint16 codes (images, tokens) and the number of images already in it.

    Raises:
        ValueError: the file is there with another shape.
    """
    done = path.with_suffix(".done.json")
    if not path.exists() or not done.exists():
        return np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=shape), 0
    codes = np.lib.format.open_memmap(path, mode="r+")
    if codes.shape != shape or codes.dtype != np.uint16:
        raise ValueError(
            f"{path}: found {codes.dtype} {codes.shape}, expected uint16 {shape}; remove it to start anew"
        )
    return codes, json.loads(done.read_text(encoding="utf-8"))["images"]


def write_progress(path: Path, images: int) -> None:
    """Note how many images the file holds."""
    partial = path.with_suffix(".done.partial")
    partial.write_text(json.dumps({"images": images}), encoding="utf-8")
    os.replace(partial, path.with_suffix(".done.json"))
