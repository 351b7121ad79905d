"""The files of a checkpoint folder: names, headers and tensors, of one file or of shards."""

from __future__ import annotations

import math
import pickle
import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open

from configs.downloads import damage, failed_download
from support.json_files import read_object

if TYPE_CHECKING:
    from torch import Tensor

LIGHTNING = "model.ckpt"  # of PyTorch Lightning, with the sizes
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin", LIGHTNING)
_INDEX = "{}.index.json"  # of weights in shards
WEIGHT_INDEXES = tuple(map(_INDEX.format, WEIGHT_FILES))
TEXT_TOKENIZER, HUB_TOKENIZER = "text_tokenizer.json", "tokenizer.json"  # Meta's, the hub's
VQGAN_CONFIG, VQGAN_WEIGHTS = "vqgan.yaml", ("vqgan.safetensors", "vqgan.ckpt")
BUNDLED_VQGAN = "model.vqmodel."  # prefix of a VQGAN's keys among a transformer's weights
T5_TOKENIZERS = ("tokenizer.json", "spiece.model")
# Where training scripts keep their arguments; Lightning's class is a dict that is read as one.
_ARGUMENTS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    Namespace,
    (dict, "pytorch_lightning.utilities.parsing.AttributeDict"),
]
_ENTRIES = ("state_dict", "model", "module")  # where training scripts put the weights
Rules = Sequence[tuple[str, str]]  # regular expressions and what replaces them


@dataclass(frozen=True)
class TensorInfo:
    """Shape and type of a stored tensor; the type as safetensors names it, such as BF16."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a weight file by name.

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
    return {
        name: TensorInfo(tuple(tensor.shape), _name(tensor.dtype))
        for name, tensor in read_tensors([path])
    }


def _name(dtype: object) -> str:
    """torch.bfloat16 -> BF16, as safetensors writes it; likewise F32, I64, U8, BOOL."""
    return re.sub("LOAT|(?<=U)INT|NT", "", str(dtype).removeprefix("torch.").upper())


@contextmanager
def open_safetensors(path: Path, framework: str = "pt") -> Iterator[safe_open]:
    """Open a safetensors file; a ValueError if it is damaged or unreadable."""
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: damaged or unreadable: {damage(path, error)}") from error


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


def renamed(name: str, rules: Rules) -> str:
    """Return a key with every pattern replaced, one rule after the other."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


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


def shapes_in(files: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """Return the shapes in the headers of files, by key."""
    return {key: info.shape for file in files for key, info in read_header(file).items()}


def read_tensors(files: Iterable[Path], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield key and tensor of every entry whose key starts with `prefix`, one tensor at a time."""
    for file in files:
        if file.suffix == ".safetensors":
            with open_safetensors(file) as shard:
                for key in shard.keys():  # noqa: SIM118 (no dict)
                    if key.startswith(prefix):
                        yield key, shard.get_tensor(key)
        else:
            tensors = _pickled(file)
            yield from ((key, value) for key, value in tensors.items() if key.startswith(prefix))


def load_pickled(file: Path) -> object:
    """Return what `torch.save` wrote, mapped if the format allows it; no code of the file runs."""
    import torch  # takes seconds, which headers of .safetensors do without

    try:
        with torch.serialization.safe_globals(_ARGUMENTS):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
    except pickle.UnpicklingError as error:
        why = failed_download(file) or "damaged, or more than tensors and plain values"
        raise ValueError(f"cannot read {file}: {why}") from error
    except Exception as error:  # on junk the unpickler fails with whatever its bytes lead to
        why = damage(file, error).splitlines()[0]
        raise ValueError(f"cannot read {file}: damaged: {why}") from error


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


def _pickled(file: Path) -> dict[str, Tensor]:
    from torch import Tensor

    state = load_pickled(file)
    if isinstance(state, dict):
        state = next((state[entry] for entry in _ENTRIES if entry in state), state)
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise ValueError(f"cannot read {file}: expected tensors by name")
    return state
