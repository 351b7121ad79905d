"""The tensors of weight files, .safetensors and .bin, one at a time."""

import pickle
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

_ENTRIES = ("state_dict", "model", "module")  # where training scripts put the weights


def read_tensors(files: Iterable[Path], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Key and tensor of every entry whose key starts with `prefix`, one file and one tensor at a time; damaged files
    raise ValueError."""
    for file in files:
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as shard:
                    for key in shard.keys():  # noqa: SIM118 (not a dict)
                        if key.startswith(prefix):
                            yield key, shard.get_tensor(key)
            else:
                with torch.serialization.safe_globals(
                    [Namespace]
                ):  # training scripts keep their arguments in it
                    content = torch.load(
                        file, map_location="cpu", weights_only=True, mmap=is_zipfile(file)
                    )
                yield from (
                    (key, value) for key, value in _state(content).items() if key.startswith(prefix)
                )
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"cannot read {file}: damaged, or more than tensors and plain values"
            ) from error
        except (SafetensorError, RuntimeError, OSError, EOFError, ValueError) as error:
            raise ValueError(f"cannot read {file}: {error}") from error


def _state(content: object) -> dict[str, Tensor]:
    """The tensors of a .bin file, or of its entry `state_dict`, `model` or `module`; ValueError if it holds something
    else."""
    state = content if isinstance(content, dict) else None
    if state is not None:
        state = next((state[entry] for entry in _ENTRIES if entry in state), state)
    if not isinstance(state, dict) or not all(
        isinstance(value, Tensor) for value in state.values()
    ):
        raise ValueError("expected tensors by name")
    return state
