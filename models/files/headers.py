"""Names, shapes and types of the tensors in weight files, without reading the tensors."""

import math
from dataclasses import dataclass
from pathlib import Path

from models.files.opening import open_safetensors


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
    """Return the tensors of a weight file by name.

    safetensors compares the header of its files with their length, so cut files are found out. A
    .bin file is mapped by torch; one that torch before 1.6 wrote cannot be and is read whole.

    Raises:
        ValueError: naming the file, if it is missing, damaged or cut.
    """
    if path.suffix == ".safetensors":
        return _safetensors_header(path)
    from models.files.tensors import read_tensors  # imports torch

    return {
        name: TensorInfo(tuple(tensor.shape), _name(tensor.dtype))
        for name, tensor in read_tensors([path])
    }


def _safetensors_header(path: Path) -> dict[str, TensorInfo]:
    with open_safetensors(path, "numpy") as file:  # numpy: torch takes seconds to import
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        return {
            name: TensorInfo(tuple(tensor.get_shape()), tensor.get_dtype())
            for name, tensor in slices.items()
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
