"""Files of JSON lines, the last of which a kill may cut; errors name the file and the line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from configs.downloads import failed_download
from configs.fields import mismatch
from support.durable import encode_lines, replace_file
from support.json_files import parse_json, shortened, unreadable

Line = dict[str, Any]
_KEYS = {"id": str, "step": int}
_LINES = "lines that this program wrote"


def read_lines(path: Path, key: str = "id", finite: bool = True) -> list[Line]:
    """Return the objects that `durable.append_lines` wrote, as `stream_lines` does."""
    return [line for _, _, line in stream_lines(path, key, finite)]


def mended_lines(path: Path) -> list[Line]:
    """Return the lines of earlier commands; a last one that was cut is taken out of the file."""
    lines = read_lines(path)
    set_lines(path, lines)
    return lines


def set_lines(path: Path, lines: list[Line]) -> None:
    """Make a file hold exactly these lines, if it does not already."""
    content = encode_lines(lines)
    if (path.read_bytes() if path.exists() else b"") != content:
        replace_file(path, content)


def stream_lines(
    path: Path, key: str = "id", finite: bool = True
) -> Iterator[tuple[int, bytes, Line]]:
    """Yield the objects that `durable.append_lines` wrote, with the numbers and texts of lines.

    A missing file has none, and a last line that a kill has cut is left out. A SettingsError names
    another line that is no object with the key: `id`, a text, or `step`, a whole number.
    """
    if not path.exists():
        return
    if path.stat().st_size and (fault := failed_download(path)):
        raise mismatch(str(path), fault, _LINES)
    cut: tuple[int, str] | None = None
    for number, text in scan_texts(path):
        if cut is not None:  # only what stands last can be the half that a kill left
            refuse_line(path, *cut)
        record = _parse_line(text, key, finite)
        if record is None:
            cut = number, shortened(text.decode(errors="replace").removesuffix("\n"))
        else:
            yield number, text, record


def scan_lines(path: Path) -> Iterator[tuple[int, Line | None]]:
    """Yield the lines of a file with their numbers; None stands for no object with an `id`.

    NaN passes: whoever reads the figures says which one it is.
    """
    for number, text in scan_texts(path):
        yield number, _parse_line(text, "id", finite=False)


def scan_texts(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their numbers, one by one: a trace of thousands of images is large.

    A line without an end is the last, though another process may go on writing it meanwhile.
    """
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                yield number, text
                if not text.endswith(b"\n"):
                    return
    except OSError as error:
        raise unreadable(path, error) from error


def refuse_line(path: Path, number: int, got: str) -> NoReturn:
    """Raise the SettingsError of a line that this program did not write."""
    raise mismatch(f"{path}, line {number}", got, _LINES)


def _parse_line(text: bytes, key: str, finite: bool) -> Line | None:
    """Return the object on a line, None if it is none or lacks the key."""
    try:
        record = parse_json(text, finite)
    except ValueError:
        return None
    complete = isinstance(record, dict) and isinstance(record.get(key), _KEYS[key])
    return record if complete else None
