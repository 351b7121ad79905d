"""Which files a checkpoint folder has: its config, its weights, whole or in shards; their names."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from models.files.tensors import load_pickled, shapes_in
from support.json_files import read_object

LIGHTNING = "model.ckpt"  # of PyTorch Lightning, with the sizes
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", LIGHTNING)
_INDEX = "{}.index.json"  # of weights in shards
WEIGHT_INDEXES = tuple(map(_INDEX.format, WEIGHT_FILES))
TEXT_TOKENIZER, HUB_TOKENIZER = "text_tokenizer.json", "tokenizer.json"  # Meta's, the hub's
VQGAN_CONFIG, VQGAN_WEIGHTS = "vqgan.yaml", ("vqgan.safetensors", "vqgan.ckpt")
BUNDLED_VQGAN = "model.vqmodel."  # prefix of a VQGAN's keys among a transformer's weights
T5_TOKENIZERS = ("tokenizer.json", "spiece.model")


def all_of(*reads: Callable[[], Any]) -> list[Any]:
    """Return what every read returns; a ValueError holds the faults of all that fail."""
    results, faults = [], []
    for read in reads:
        try:
            results.append(read())
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError("; ".join(dict.fromkeys(faults)))
    return results


def weight_files(folder: Path, names: Sequence[str] = WEIGHT_FILES) -> list[Path]:
    """Return the weight files of a checkpoint folder, all shards; names: of single files."""
    files = listed_files(folder, names)
    if missing := [str(file) for file in files if not file.is_file()]:
        raise ValueError(
            f"the index in {folder} lists shards that are missing: {', '.join(missing)}"
        )
    return files


def listed_files(folder: Path, names: Sequence[str] = WEIGHT_FILES) -> list[Path]:
    """Return the weight files in a folder or in its index; ValueError if there are none."""
    if placed := placed_keys(folder, names):
        return sorted(set(placed.values()))
    for name in names:
        if (folder / name).is_file():
            return [folder / name]
    expected = ", ".join((*names, *map(_INDEX.format, names)))
    raise ValueError(f"no weights in {folder}: expected one of {expected}")


def present_files(folder: Path, *names: str) -> list[Path]:
    """Return those of the `listed_files` that are there; none of a user's copies."""
    with suppress(ValueError):  # none; what is wrong with an index is for its reader to say
        return [file for file in listed_files(folder, names) if file.is_file()]
    return []


def placed_keys(folder: Path, names: Sequence[str] = WEIGHT_FILES) -> dict[str, Path]:
    """Return the shard of every key, as the folder's index says; empty without an index.

    An index beside a whole file is left from an earlier save, as transformers also sees it.
    """
    for name in names:
        index = folder / _INDEX.format(name)
        if (folder / name).is_file():
            break
        if index.is_file():
            weight_map = read_object(index).get("weight_map")
            if not isinstance(weight_map, dict) or not all(
                isinstance(shard, str) for shard in weight_map.values()
            ):
                raise ValueError(f"{index} has no weight_map")
            return {key: folder / shard for key, shard in weight_map.items()}
    return {}


def folder_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a folder's weights, by key."""
    return shapes_in(weight_files(folder))


def read_config(folder: Path) -> dict:
    """Return a checkpoint's config.json, or the hyperparameters in PyTorch Lightning's file."""
    file = folder / LIGHTNING
    if (folder / "config.json").exists() or not file.is_file():
        return read_object(folder / "config.json")
    state = load_pickled(file)
    sizes = state.get("hyper_parameters") if isinstance(state, dict) else None
    if not isinstance(sizes, dict):
        raise ValueError(f"cannot read {file}: expected hyper_parameters")
    return sizes
