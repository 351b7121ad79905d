"""Files that survive a kill at any moment: replacement, added lines, a lock that dies with its process."""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"


def lock(path: Path) -> IO[bytes]:
    """Hold the lock file until the returned file is closed; BlockingIOError if another process holds it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


def flush_to_disk(file: IO[bytes]) -> None:
    """Return when the disk has what was written."""
    file.flush()
    os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Give the file this content; whoever reads it sees the old or the new one, never a part."""
    hidden = path.with_name(
        f".{path.name}.{os.getpid()}.tmp"
    )  # two processes may write the same file
    with hidden.open("wb") as file:
        file.write(content)
        flush_to_disk(file)
    os.replace(hidden, path)


def encode_lines(lines: Sequence[dict[str, Any]]) -> bytes:
    """One line of JSON each; a ValueError for NaN and infinities."""
    return "".join(
        json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines
    ).encode()


def encode_json(content: object) -> bytes:
    """A JSON document for readers; a ValueError for NaN and infinities."""
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def append_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Add lines of JSON, with one write."""
    with path.open("ab") as file:
        file.write(encode_lines(lines))
        flush_to_disk(file)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that `append_lines` wrote, without a last one that was cut; ValueError for any other text."""
    texts = path.read_bytes().split(b"\n") if path.exists() else []
    lines = []
    for number, text in enumerate(texts, 1):
        line = _parse(text)
        if line is not None:
            lines.append(line)
        elif number < len(texts) - 1:
            raise ValueError(f"line {number} is not one that this program wrote")
    return lines


def scan_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The lines one by one with their numbers; None stands for text that `append_lines` did not write."""
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            yield number, _parse(text)


def is_whole_png(path: Path) -> bool:
    """Whether the file starts and ends as a PNG does: enough for files that are moved to their place."""
    if not path.is_file() or path.stat().st_size < len(_PNG_START) + len(_PNG_END):
        return False
    with path.open("rb") as file:
        start = file.read(len(_PNG_START))
        file.seek(-len(_PNG_END), os.SEEK_END)
        return start == _PNG_START and file.read() == _PNG_END


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("id"), str) else None
