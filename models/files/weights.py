"""The weight files of a checkpoint folder, single or sharded, and the shapes in their headers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.files.headers import read_header
from models.files.names import WEIGHT_FILES, WEIGHT_INDEXES
from support.json_files import read_object


@contextmanager
def naming(source: object) -> Iterator[None]:
    """Let a ValueError say which folder, file or flag it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a checkpoint folder, all shards.

    Raises:
        ValueError: if there are none, or the index is damaged or lists shards that are missing.
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
    """Return the shapes of all tensors of a checkpoint folder, by key, from the files' headers.

    Errors as weight_files and read_header.
    """
    return {
        key: info.shape for file in weight_files(folder) for key, info in read_header(file).items()
    }
