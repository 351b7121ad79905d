"""Nearest-latent table of a codebook, read by relaxed acceptance (LANTERN, section "vq_distances").

Public layout: `vq_distances/top_{K-1}_indices.npy`, uint16 (K, K-1). Row c lists every other code by its
Euclidean distance to code c, nearest first; c itself is left out, and ties go to the lowest code. A narrower table,
`top_{n}_indices.npy` (K, n), holds the first n columns.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_LARGEST = 2**16
_NAME = re.compile(r"top_([0-9]{1,5})_indices\.npy")


def table_path(folder: str | Path, codes: int, neighbours: int | None = None) -> Path:
    """Place of the table of a codebook with `codes` entries inside a checkpoint folder; all neighbours when None."""
    return Path(folder) / "vq_distances" / f"top_{neighbours or codes - 1}_indices.npy"


def nearest_codes(codebook: Tensor, neighbours: int | None = None, chunk: int = 256) -> np.ndarray:
    """The nearest other codes of every code, ascending by Euclidean distance: uint16 (K, neighbours).

    Distances are computed in fp64 from differences, so that equal latents have distance zero exactly.

    Args:
        codebook: latents (K, d), K at most 65,536.
        neighbours: columns of the table; all K-1 others when None.
        chunk: rows computed at a time.

    Raises:
        ValueError: on a wrong shape, a number that is not finite, or a number of neighbours outside 1..K-1.
    """
    _check(codebook, neighbours)
    count = len(codebook)
    neighbours = count - 1 if neighbours is None else neighbours
    table = np.empty((count, neighbours), dtype=np.uint16)
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        table[start:stop] = _rows(codebook, start, stop)[:, :neighbours]
    return table


def write_table(
    codebook: Tensor, path: Path, neighbours: int | None = None, chunk: int = 256
) -> None:
    """Compute a table into `path`, uint16 (K, neighbours), `chunk` rows at a time straight to the disk; the file
    appears only when it is whole. Arguments and errors as `nearest_codes`."""
    _check(codebook, neighbours)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    count = len(codebook)
    columns = count - 1 if neighbours is None else neighbours
    table = np.lib.format.open_memmap(partial, mode="w+", dtype=np.uint16, shape=(count, columns))
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        table[start:stop] = _rows(codebook, start, stop)[:, :columns]
    table.flush()
    os.replace(partial, path)


def load_table(path: str | Path, codes: int, neighbours: int | None = None) -> np.ndarray:
    """The table of a codebook with `codes` entries, memory-mapped and read-only; or a copy in memory of its first
    `neighbours` columns, read row by row, so that the rest of a public table never is in memory.

    Raises:
        ValueError: naming the file, if it is missing, damaged, or has another shape or dtype.
    """
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: cannot be read as a nearest-latent table: {error}") from error
    least = codes - 1 if neighbours is None else neighbours
    fits = table.ndim == 2 and len(table) == codes and least <= table.shape[1] < codes
    if not fits or table.dtype != np.uint16:
        wanted = (
            f"({codes}, {codes - 1})"
            if neighbours is None
            else f"({codes}, {least} to {codes - 1})"
        )
        raise ValueError(f"{path}: found {table.dtype} {table.shape}, expected uint16 {wanted}")
    return table if neighbours is None else np.ascontiguousarray(table[:, :neighbours])


def find_table(folder: str | Path, codes: int, neighbours: int) -> Path:
    """The narrowest table in a checkpoint folder with at least so many neighbours per code.

    Raises:
        ValueError: naming the folder and the command that makes one.
    """
    places = Path(folder) / "vq_distances"
    widths = [
        int(match[1]) for path in places.glob("top_*.npy") if (match := _NAME.fullmatch(path.name))
    ]
    if fitting := [width for width in widths if neighbours <= width < codes]:
        return table_path(folder, codes, min(fitting))
    raise ValueError(
        f"{places}: found no table of at least {neighbours} neighbours; "
        f"`python main.py vq_distances --model_path {folder}` makes it"
    )


def _check(codebook: Tensor, neighbours: int | None) -> None:
    if codebook.ndim != 2 or not 2 <= len(codebook) <= _LARGEST:
        raise ValueError(
            f"codebook: found shape {tuple(codebook.shape)}, allowed is (2..{_LARGEST}, d)"
        )
    if not torch.isfinite(codebook).all():
        raise ValueError("codebook: found a latent that is not finite")
    if neighbours is not None and not 1 <= neighbours < len(codebook):
        raise ValueError(f"--neighbours: found {neighbours}; allowed: 1 to {len(codebook) - 1}")


def _rows(codebook: Tensor, start: int, stop: int) -> np.ndarray:
    """All other codes of the codes start..stop-1 in ascending order: uint16 (stop - start, K - 1)."""
    latents = codebook.detach().to("cpu", torch.float64)
    distances = torch.cdist(
        latents[start:stop], latents, compute_mode="donot_use_mm_for_euclid_dist"
    )
    own = torch.arange(start, stop)
    distances[torch.arange(stop - start), own] = -1.0  # first column, then cut off
    order = distances.sort(dim=1, stable=True).indices[:, 1:]
    return order.numpy().astype(np.uint16)
