"""Fixtures of benchmark and evaluate."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def fill_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that lets the disk be full from some write of a file on."""

    def fill(path: Path, writes: int = 0) -> None:
        """Let all writes fail after the first `writes` of the file,
        or of its hidden new content.
        """
        sync, done = os.fsync, []

        def full(number: int) -> None:
            files = [file for file in path.parent.iterdir() if path.name in file.name]
            if any(os.path.samestat(file.stat(), os.fstat(number)) for file in files):
                done.append(number)
                if len(done) > writes:
                    raise OSError(errno.ENOSPC, "No space left on device")
            sync(number)

        monkeypatch.setattr(os, "fsync", full)

    return fill
