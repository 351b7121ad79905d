"""Files that survive a kill at any moment, and a full disk.

They are replaced as a whole or grow by whole lines. OSErrors from here name the file.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from configs.fields import Flag, mismatch


def make_writable(flag: str, folder: Path) -> None:
    """Make a folder and try to write in it; a SettingsError of the flag says why that fails.

    Commands call it before hours of work whose result belongs there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # a ValueError: a name with NUL in it
        raise mismatch(Flag(flag, folder), reason(error), "a writable folder") from error


def reason(error: OSError | ValueError) -> str:
    """Say what the system refused, without number and file."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let OSErrors that name no file, as that of a full disk, name this one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears at `path` as a whole when the block ends.

    Readers see the old content or the new one, never a part; after an error the old one stays.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # two processes may write one file
    with naming(path):
        try:
            with hidden.open("wb") as file:
                yield file
                # a rename may reach the disk before the content does: the file would be empty then
                file.flush()
                os.fsync(file.fileno())
            os.replace(hidden, path)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise


def remove_halves(folder: Path, name: str) -> None:
    """Remove what killed processes left of `new_file`; name: a regular expression of the files.

    For files that one process writes.
    """
    for left in files_named(folder, rf"\.({name})\.[0-9]+\.tmp"):
        left.unlink(missing_ok=True)


def files_named(folder: Path, name: str) -> list[Path]:
    """Return the files in a folder whose whole names match a regular expression, sorted.

    Unlike a glob, the expression can say exactly which names we write: users keep copies.
    """
    there = os.listdir(folder) if folder.is_dir() else ()
    return sorted(folder / one for one in there if re.fullmatch(name, one))


def give_usual_mode(path: Path) -> None:
    """Let a file have the mode that the umask gives: safetensors' `save_file` makes it 0600."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def replace_file(path: Path, content: bytes) -> None:
    """Give the file this content, as a whole."""
    with new_file(path) as file:
        file.write(content)


def encode_lines(lines: Sequence[dict[str, Any]], finite: bool = True) -> bytes:
    """Return one line of JSON each; a ValueError for NaN and infinities, unless `finite` is off."""
    return b"".join(_encode(line, finite=finite) + b"\n" for line in lines)


def encode_json(content: object, indent: int = 1) -> bytes:
    """Return a JSON document for readers; a ValueError for NaN and infinities."""
    return _encode(content, indent) + b"\n"


def append_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Append JSON lines to a file."""
    append_bytes(path, encode_lines(lines))


def append_bytes(path: Path, content: bytes) -> None:
    """Add to the end of a file; after an error, such as a full disk's, it ends as it did before."""
    # unbuffered: a write that fails is noticed here, where the half of it can be cut off again
    with naming(path), path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            rest = memoryview(content)
            while rest:  # without a buffer, a write may take a part only
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise


def _encode(content: object, indent: int | None = None, finite: bool = True) -> bytes:
    """Return JSON in UTF-8, or in ASCII for texts that UTF-8 lacks: file names may be any bytes."""
    write = partial(json.dumps, content, indent=indent, allow_nan=not finite)
    try:
        return write(ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return write().encode()
