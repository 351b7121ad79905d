"""Reading JSON that may be damaged or another program's: errors name the file."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from configs.downloads import damage
from configs.fields import SettingsError, mismatch

_OBJECT = "a JSON object"


def parse_json(text: str | bytes, finite: bool = True, unique: bool = False) -> Any:
    """Return what the text stands for.

    A ValueError for text that is no JSON, or nested too deep, or, unless `finite` is off, holds NaN
    or an infinity, or, with `unique`, an object with a key twice.
    """
    constant, pairs = _refuse_constant if finite else None, _unique_keys if unique else None
    try:
        return json.loads(text, parse_constant=constant, object_pairs_hook=pairs)
    except RecursionError as error:
        raise ValueError("brackets nested too deep") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; a SettingsError if it is missing, damaged or another."""
    if not path.exists():
        raise SettingsError(f"missing file: {path}")
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise mismatch(str(path), f"no JSON: {damage(path, error)}", _OBJECT) from error
    if not isinstance(content, dict):
        raise mismatch(str(path), shortened(content), _OBJECT)
    return content


def unreadable(path: Path, error: OSError) -> SettingsError:
    """Return the error of a file that the system does not give."""
    return SettingsError(f"{path}: cannot be read: {error.strerror}")


def shortened(value: object) -> str:
    """Return a value as Python writes it, cut to 60 characters."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; a ValueError for a key that stands in it twice: the last would count."""
    keys = Counter(key for key, _ in pairs)
    if twice := [key for key, count in keys.items() if count > 1]:
        raise ValueError(f"the key {twice[0]!r} twice")
    return dict(pairs)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
