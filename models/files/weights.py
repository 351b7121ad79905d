"""The weight files of a checkpoint folder, single or sharded, and the tensors in their headers.

It does not import torch, which takes seconds.
"""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.files.names import WEIGHT_FILES, WEIGHT_INDEXES
from models.files.safetensors import open_safetensors
from support.json_files import read_object


@dataclass(frozen=True)
class TensorInfo:
    """Shape and type of a stored tensor; the type as safetensors names it, such as BF16."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a weight file by name; ValueError names a missing, damaged or cut one.

    safetensors compares the header of its files with their length, so cut files are found out. A
    .bin file is mapped by torch; one that torch before 1.6 wrote cannot be and is read whole.
    """
    if path.suffix == ".safetensors":
        with open_safetensors(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            return {
                name: TensorInfo(tuple(tensor.get_shape()), tensor.get_dtype())
                for name, tensor in slices.items()
            }
    from models.files.tensors import read_tensors  # imports torch

    return {
        name: TensorInfo(tuple(tensor.shape), _name(tensor.dtype))
        for name, tensor in read_tensors([path])
    }


def _name(dtype: object) -> str:
    """torch.bfloat16 -> BF16, as safetensors writes it; likewise F32, I64, U8, BOOL."""
    return re.sub("LOAT|(?<=U)INT|NT", "", str(dtype).removeprefix("torch.").upper())


@contextmanager
def naming(source: object) -> Iterator[None]:
    """Let a ValueError say which folder, file or flag it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a checkpoint folder, all shards.

    ValueError if there are none, or the index is damaged or lists shards that are missing.
    """
    files = listed_files(folder)
    if missing := [str(file) for file in files if not file.is_file()]:
        raise ValueError(
            f"the index in {folder} lists shards that are missing: {', '.join(missing)}"
        )
    return files


def listed_files(folder: Path) -> list[Path]:
    """Return the weight files in a folder or in its index; ValueError if there are none."""
    if placed := placed_keys(folder):
        return sorted(set(placed.values()))
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return [folder / name]
    raise ValueError(
        f"no weights in {folder}: expected one of {', '.join((*WEIGHT_FILES, *WEIGHT_INDEXES))}"
    )


def placed_keys(folder: Path) -> dict[str, Path]:
    """Return the shard of every key, as the folder's index says; empty without an index."""
    for index in WEIGHT_INDEXES:
        if (folder / index).is_file():
            weight_map = read_object(folder / index).get("weight_map")
            if not isinstance(weight_map, dict) or not all(
                isinstance(name, str) for name in weight_map.values()
            ):
                raise ValueError(f"{folder / index} has no weight_map")
            return {key: folder / name for key, name in weight_map.items()}
    return {}


def folder_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a checkpoint folder; errors as `weight_files`."""
    return shapes_in(weight_files(folder))


def shapes_in(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """Return the shapes in the headers of files, by key; errors as `read_header`."""
    return {key: info.shape for file in files for key, info in read_header(file).items()}
