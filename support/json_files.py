"""Reading JSON that may be damaged or somebody else's: an error names the file, and the line in it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from configs.fields import SettingsError

Line = dict[str, Any]


def parse_json(text: str | bytes, finite: bool = True) -> Any:
    """Return what the text stands for; a ValueError for anything but JSON, for endless nesting, and, unless `finite` is
    off, for NaN and infinities."""
    try:
        return json.loads(text, parse_constant=_refuse_constant if finite else None)
    except RecursionError as error:
        raise ValueError("brackets nested too deep") from error


def read_object(path: Path) -> Line:
    """Return the JSON object that a file holds; a SettingsError if it cannot be read or holds something else."""
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise SettingsError(
            f"{path}: found a file that cannot be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise SettingsError(f"{path}: found no JSON: {error}; allowed: a JSON object") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: found {shortened(content)}; allowed: a JSON object")
    return content


def read_lines(path: Path) -> list[Line]:
    """Return the objects that `durable.append_lines` wrote, none for a missing file; a last line that a kill has cut
    is left out. A SettingsError names any other line that is no object with an `id`."""
    try:
        texts = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SettingsError(
            f"{path}: found a file that cannot be read: {error.strerror}"
        ) from error
    lines = []
    for number, text in enumerate(texts, 1):
        line = _parse_line(text)
        if line is not None:
            lines.append(line)
        elif number < len(texts) - 1:
            refuse_line(path, number, shortened(text.decode(errors="replace")))
    return lines


def scan_lines(path: Path) -> Iterator[tuple[int, Line | None]]:
    """Yield the lines of a file with their numbers; None stands for a text that is no object with an `id`. NaN passes:
    who reads the figures says which one it is."""
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            yield number, _parse_line(text, finite=False)


def refuse_line(path: Path, number: int, found: str) -> NoReturn:
    """Raise the SettingsError of a line that this program did not write."""
    raise SettingsError(
        f"{path}: found, in line {number}, {found}; allowed: lines that this program wrote"
    )


def shortened(found: object, size: int = 60) -> str:
    """Return what was found as Python writes it, cut to so many characters."""
    shown = repr(found)
    return shown if len(shown) <= size else f"{shown[:size]}..."


def _parse_line(text: bytes, finite: bool = True) -> Line | None:
    """Return the object with an `id` on a line; finite: NaN and infinities are no numbers."""
    try:
        line = parse_json(text, finite)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("id"), str) else None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
