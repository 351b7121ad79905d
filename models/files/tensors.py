"""The tensors in files of weights: names, shapes, contents."""

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

if TYPE_CHECKING:
    from torch import Tensor

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


def renamed(name: str, rules: Rules) -> str:
    """Return a key with every pattern replaced, one rule after the other."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


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
