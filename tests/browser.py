"""The browser that tests drive, Chromium as Debian installs it, and the page's server."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from configs.targets import ROOT

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)

ALL = "ADT_TEST_ALL" in os.environ  # `make test-all` sets it

# In `make test-all` these tests fail without a browser instead.
needs_browser = pytest.mark.skipif(
    BROWSER is None and not ALL, reason=f"no browser: none of {', '.join(NAMES)} is on PATH"
)
only_in_all = pytest.mark.skipif(not ALL, reason="only in make test-all")


def thinned(cases):
    """Return every third of many like cases; in `make test-all` all of them."""
    return list(cases)[:: 1 if ALL else 3]


@contextmanager
def serving(
    folder: Path, *words: str, **environment: str
) -> Iterator[tuple[str, subprocess.Popen]]:
    """The address of `demo` with the included model, in a process that works in a folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Ctrl-C is not ignored, as it is in what a shell runs in the background.
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "main.py"), "demo", f"--port={port}", "--device=cpu", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        loading, line = process.stdout.readline(), process.stdout.readline()
        assert "] loading the model (tiny) from " in loading, loading
        url = f"http://127.0.0.1:{port}/"
        assert line == f"{url}: the page; {url}v1: OpenAI's image API; Ctrl-C ends both\n", line
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()
