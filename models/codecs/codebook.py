"""The table of nearest codes that relaxed acceptance reads (LANTERN, "vq_distances").

Public layout: `vq_distances/top_{K-1}_indices.npy`, uint16 (K, K-1). Row c lists every other code
by the Euclidean distance of its latent to that of code c, nearest first, ties by the lowest code. A
narrower table, `top_{n}_indices.npy` (K, n), holds the first n columns. Tables of more than 65,536
codes (Emu3.5) are uint32; for all others of 131,072 they would take 64 GiB, so they are narrow.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from configs.downloads import failed_download
from configs.fields import Flag, mismatch
from support.durable import new_file

_SHORT = 2**16  # codes that uint16 can name
_LOOKED_AT = 64  # rows of a table that are compared with a codebook
_NAME = re.compile(r"top_([0-9]{1,5})_indices\.npy")
_PLACE = Path("outputs/vq_distances")  # of checkpoints into whose folders we do not write
_OF_THE_HUB = re.compile("/models--[^/]+/snapshots/")


def number_type(codes: int) -> np.dtype:
    """Return the type of the numbers in a table of so many codes."""
    return np.dtype("<u2" if codes <= _SHORT else "<u4")


def table_path(folder: str | Path, codes: int, neighbours: int | None = None) -> Path:
    """Return where a checkpoint's table is written; `neighbours` None means all others."""
    name = f"top_{neighbours or codes - 1}_indices.npy"
    # the hub's cache is another program's, and goes with its snapshot
    ours = os.access(folder, os.W_OK) and not _OF_THE_HUB.search(str(Path(folder).resolve()))
    return (Path(folder) / "vq_distances" if ours else _place(folder)) / name


def _place(folder: str | Path) -> Path:
    """Return where the tables of a checkpoint are that its own folder does not take."""
    path = Path(folder).resolve()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return _PLACE / f"{'-'.join(path.parts[-3:])}_{digest}"


def nearest_codes(
    codebook: Tensor, neighbours: int | None = None, chunk: int = 256
) -> Iterator[np.ndarray]:
    """Yield the rows of a table (chunk, neighbours): the other codes, nearest first.

    codebook: finite latents (K, d). neighbours: None for all K-1 others, of up to 65,536.
    """
    if codebook.ndim != 2 or len(codebook) < 2:
        raise mismatch("codebook", f"shape {tuple(codebook.shape)}", "shape (2 or more, d)")
    if not torch.isfinite(codebook).all():
        raise mismatch("codebook", "NaN or infinity", "finite latents")
    most = min(len(codebook), _SHORT) - 1
    if not 1 <= (len(codebook) - 1 if neighbours is None else neighbours) <= most:
        asked = "all others" if neighbours is None else str(neighbours)
        raise mismatch(Flag("neighbours"), asked, f"1 to {most}")
    latents = codebook.detach().to("cpu", torch.float64)
    rows = torch.arange(len(latents)).split(chunk)
    return (_others_by_distance(latents, block)[:, :neighbours] for block in rows)


def _others_by_distance(latents: Tensor, codes: Tensor) -> np.ndarray:
    """Latents (K, d), codes (n,) -> all other codes of each of them (n, K-1)."""
    # In fp64 and by differences: equal latents have distance zero exactly, which a matrix product
    # would not always give.
    distances = torch.cdist(
        latents[codes], latents, compute_mode="donot_use_mm_for_euclid_dist"
    )  # (n, K)
    distances[torch.arange(len(codes)), codes] = -1.0  # the code itself comes first and is cut off
    order = distances.sort(dim=1, stable=True).indices[:, 1:]
    return order.numpy().astype(number_type(len(latents)))


def write_table(codebook: Tensor, path: Path, neighbours: int | None = None) -> None:
    """Compute a table and write it; the file appears only when it is whole."""
    # It checks its arguments at once, before a file is begun; only its rows are lazy.
    rows = nearest_codes(codebook, neighbours)
    shape = (len(codebook), neighbours or len(codebook) - 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as file:
        # np.save would need the whole table in memory
        kind = number_type(len(codebook)).str
        np.lib.format.write_array_header_1_0(
            file, {"descr": kind, "fortran_order": False, "shape": shape}
        )
        for block in rows:
            file.write(block.tobytes())


def load_table(path: str | Path, codes: int, neighbours: int | None = None) -> np.ndarray:
    """Return the table of a codebook with so many codes, memory-mapped and read-only.

    With `neighbours` it is a copy of so many columns, the only ones that ever are in memory.
    """
    try:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:  # numpy takes junk for pickled objects
        why = getattr(error, "strerror", None) or failed_download(Path(path))
        why = why or "damaged, or no .npy file"
        raise ValueError(f"{path}: cannot be read as a table of nearest codes: {why}") from error
    least = codes - 1 if neighbours is None else neighbours
    fits = table.ndim == 2 and len(table) == codes and least <= table.shape[1] < codes
    if not fits or table.dtype != number_type(codes):
        columns = codes - 1 if neighbours is None else f"{least} to {codes - 1}"
        raise ValueError(
            f"{path}: found {table.dtype} {table.shape}, expected {number_type(codes)} "
            f"({codes}, {columns})"
        )
    table = table if neighbours is None else np.ascontiguousarray(table[:, :neighbours])
    if (largest := int(table.max())) >= codes:
        raise mismatch(str(path), f"the code {largest}", f"codes from 0 to {codes - 1}")
    return table


def refuse_other_codebook(path: Path, table: np.ndarray, codebook: Tensor) -> None:
    """Raise a ValueError unless a table is of this codebook (K, d): others may have as many codes.

    In half of some rows at least, no code is nearer than the first one. In others a program that
    made the table may have rounded, or broken a tie, otherwise.
    """
    latents = codebook.detach().to("cpu", torch.float64)
    codes = torch.arange(0, len(latents), max(1, len(latents) // _LOOKED_AT))
    distances = torch.cdist(
        latents[codes], latents, compute_mode="donot_use_mm_for_euclid_dist"
    )  # (n, K)
    first = torch.from_numpy(table[codes, :1].astype("int64"))
    stated = distances.gather(1, first)[:, 0]
    distances[torch.arange(len(codes)), codes] = torch.inf
    if (stated <= 1.001 * distances.amin(1)).double().mean() < 0.5:
        advice = "`python main.py vq_distances` with the same model makes it again."
        raise mismatch(str(path), "those of another codebook", "the model's nearest codes", advice)


def find_table(folder: str | Path, codes: int, neighbours: int, model: str) -> Path:
    """Return the narrowest table of a checkpoint folder with at least so many neighbours.

    model: the value of --model, for errors.
    """
    there = tables(folder)
    if fitting := [width for width in there if neighbours <= width < codes]:
        return there[min(fitting)]
    raise ValueError(
        f"{Path(folder) / 'vq_distances'}: found no table of at least {neighbours} neighbours; "
        f"{how_to_make(model, folder)}"
    )


def how_to_make(model: str, folder: str | Path) -> str:
    """Return in words which command makes a model's table."""
    words = f"--model {model} --model_path {shlex.quote(str(folder))}"
    return f"`python main.py vq_distances {words}` makes it"


def tables(folder: str | Path) -> dict[int, Path]:
    """Return a checkpoint's tables by their neighbours per code, ascending."""
    homes = Path(folder) / "vq_distances", _place(folder)
    files = [file for home in homes for file in home.glob("top_*.npy")]
    return dict(sorted((int(match[1]), f) for f in files if (match := _NAME.fullmatch(f.name))))
