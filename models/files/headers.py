"""Names, shapes and types of the tensors in weight files, without reading the tensors; imports torch for .bin only."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

_MOST_HEADER = 100_000_000  # bytes; the format's own bound
_BITS = {
    "F64": 64,
    "I64": 64,
    "F32": 32,
    "I32": 32,
    "F16": 16,
    "BF16": 16,
    "I16": 16,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
}


@dataclass(frozen=True)
class TensorInfo:
    """Shape and type of a stored tensor; the type as safetensors names it, such as BF16."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a weight file by name, .safetensors from its header, others as torch maps them.

    A .bin file of torch before 1.6 cannot be mapped and is read whole.

    Raises:
        ValueError: naming the file, if it is missing, damaged or shorter than its header says.
    """
    try:
        if path.suffix == ".safetensors":
            return _safetensors_header(path)
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: damaged or unreadable: {error}") from error
    return _mapped(path)


def _safetensors_header(path: Path) -> dict[str, TensorInfo]:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(size - 8, _MOST_HEADER):
            raise ValueError(f"{size} bytes do not hold the header")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    wanted = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if wanted != size:
        raise ValueError(f"{size} bytes found, {wanted} announced by the header")
    found = {
        name: TensorInfo(tuple(entry["shape"]), entry["dtype"]) for name, entry in entries.items()
    }
    for name, entry in entries.items():
        first, last = entry["data_offsets"]
        if (
            found[name].dtype in _BITS
            and (last - first) * 8 != found[name].count * _BITS[found[name].dtype]
        ):
            raise ValueError(f"{name} has {last - first} bytes for {found[name]}")
    return found


def _mapped(path: Path) -> dict[str, TensorInfo]:
    from models.files.tensors import read_tensors

    return {
        name: TensorInfo(tuple(tensor.shape), _name(tensor.dtype))
        for name, tensor in read_tensors([path])
    }


def _name(dtype: object) -> str:
    """torch.bfloat16 -> BF16, as safetensors writes it."""
    word = str(dtype).removeprefix("torch.")
    if word == "bool":
        return "BOOL"
    return (
        word.upper()
        .replace("BFLOAT", "BF")
        .replace("UINT", "U")
        .replace("FLOAT", "F")
        .replace("INT", "I")
    )
