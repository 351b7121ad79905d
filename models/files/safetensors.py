"""Opening .safetensors files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from configs.downloads import damage


@contextmanager
def open_safetensors(path: Path, framework: str = "pt") -> Iterator[safe_open]:
    """Open a .safetensors file; a ValueError names one that is missing, damaged or cut."""
    try:
        with safe_open(path, framework=framework) as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: damaged or unreadable: {damage(path, error)}") from error
