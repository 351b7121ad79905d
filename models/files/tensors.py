"""The tensors of weight files, .safetensors and .bin, one at a time."""

import pickle
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import is_zipfile

import torch
from torch import Tensor

from configs.downloads import damage, failed_download
from models.files.safetensors import open_safetensors

_ENTRIES = ("state_dict", "model", "module")  # where training scripts put the weights


def read_tensors(files: Iterable[Path], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield key and tensor of every entry whose key starts with `prefix`, one tensor at a time.

    A ValueError names a file that is missing, damaged or holds more than tensors by name.
    """
    for file in files:
        read = _safetensors if file.suffix == ".safetensors" else _pickled
        yield from read(file, prefix)


def load_pickled(file: Path) -> object:
    """Return what `torch.save` wrote, mapped where the format allows it; no code of the file runs.

    A ValueError names a file that is missing, damaged or would run code.
    """
    try:
        # training scripts keep their arguments in a Namespace
        with torch.serialization.safe_globals([Namespace]):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=is_zipfile(file))
    except pickle.UnpicklingError as error:
        why = failed_download(file) or "damaged, or more than tensors and plain values"
        raise ValueError(f"cannot read {file}: {why}") from error
    except Exception as error:  # on junk the unpickler fails with whatever its bytes lead to
        why = damage(file, error).splitlines()[0]
        raise ValueError(f"cannot read {file}: damaged: {why}") from error


def _safetensors(file: Path, prefix: str) -> Iterator[tuple[str, Tensor]]:
    with open_safetensors(file) as shard:
        for key in shard.keys():  # noqa: SIM118 (no dict)
            if key.startswith(prefix):
                yield key, shard.get_tensor(key)


def _pickled(file: Path, prefix: str) -> Iterator[tuple[str, Tensor]]:
    content = load_pickled(file)
    state = content if isinstance(content, dict) else {}
    state = next((state[entry] for entry in _ENTRIES if entry in state), state)
    by_name = isinstance(state, dict) and all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    )
    if not by_name or not isinstance(content, dict):
        raise ValueError(f"cannot read {file}: expected tensors by name")
    yield from ((key, value) for key, value in state.items() if key.startswith(prefix))
