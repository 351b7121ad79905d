"""Locks that end with their process."""

import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import BinaryIO, Self

from configs.fields import mismatch
from support.durable import files_named
from support.output import remark

# what flock answers on Lustre and NFS that are mounted without locks
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
RANK = "(?:0|[1-9][0-9]{0,2})"  # of a process in the names of its files; dates are longer


def lock(path: Path) -> "BinaryIO | _Holder":
    """Lock a file until what comes back is closed; BlockingIOError if another process has it.

    Where the file system has no locks, a file beside it names the process that holds it. This finds
    other processes of this machine; a SettingsError asks the user about one of another machine.
    """
    # Not "wb", which would erase the holder's number before we know whether the lock is free.
    file, held = path.open("ab"), None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            held = _Holder(path.with_name(f"{path.name}.holder"))
        # for people who wonder who holds the lock, and for `holder_of` on other machines
        file.truncate(0)
        file.write(f"{socket.gethostname()} {os.getpid()} {time.time_ns()}".encode())
        file.flush()
    except OSError as error:
        file.close()
        error.filename = error.filename or str(path)
        raise
    if held is None:
        return file
    file.close()
    return held


def refuse_others(folder: Path) -> None:
    """Raise BlockingIOError if a process still writes that shared an earlier command's work.

    Process n holds .lock.n; its lock is taken for a moment.
    """
    for path in files_named(folder, rf"\.lock\.{RANK}"):
        lock(path).close()


def holder_of(path: Path) -> str:
    """Return what tells the process that holds a lock from all others; "" without the file."""
    return path.read_text(errors="replace") if path.is_file() else ""


class _Holder:
    """A file that names the machine and process at work, where nothing can be locked."""

    def __init__(self, path: Path):
        self.path = path
        remark(f"{path.parent}: its file system has no locks; start one command at a time there")
        try:
            self._create()
        except FileExistsError as error:
            host, _, number = path.read_text(errors="replace").partition(" ")
            if host != socket.gethostname():
                whose = f"process {number} on {host}" if host else "an unknown process"
                got = f"one that {whose} holds, on a file system without locks"
                advice = "Delete it if that command has ended."
                raise mismatch(str(path), got, "no such file", advice) from error
            if _is_alive(number):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path)) from error
            path.unlink(missing_ok=True)  # that process was killed
            self._create()

    def _create(self) -> None:
        with self.path.open("x") as file:
            file.write(f"{socket.gethostname()} {os.getpid()}")

    def close(self) -> None:
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _is_alive(number: str) -> bool:
    try:
        os.kill(int(number), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def claim(source: str, path: Path) -> "BinaryIO | _Holder":
    """Return the lock beside a file that one process at a time may write; else a SettingsError."""
    try:
        return lock(path.with_name(f".{path.name}.lock"))
    except BlockingIOError as error:
        raise mismatch(source, "another process using it", "one process at a time") from error
