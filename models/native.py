"""Builds `kernels.cpp` for this machine's processor, once, and loads it."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch  # noqa: F401  (it loads OpenMP, which the library needs)

from support.user_cache import cache_folder

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = "-std=c++17 -O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -fPIC"
_SECONDS = 300  # that a compiler may take


class NoKernels(Exception):
    """The kernels cannot be built or loaded here; says why."""


@cache
def kernels() -> ctypes.CDLL:
    """Return the library; the first call on a machine compiles it, which takes some seconds.

    It stays in the user's cache folder, under a name of its own for every source, compiler and
    processor.

    Raises:
        NoKernels: there is no C++ compiler, or it fails.
    """
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if shutil.which(command[0]) is None:
        raise NoKernels(f"there is no C++ compiler {command[0]!r}; CXX names another one")
    try:
        library = cache_folder() / f"kernels-{_key(command)}.so"
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            _build(command, library)
        # one pool of threads serves torch and the kernels
        return ctypes.CDLL(str(library))
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise NoKernels(f"{shlex.join(command)} cannot compile {SOURCE}: {lines[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernels(str(error)) from error


def _key(command: list[str]) -> str:
    """Return a hash of what the library depends on."""
    version = _run([*command, "--version"])
    parts = SOURCE.read_text(), FLAGS, shlex.join(command), version, _processor()
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return what tells processors of different instructions apart."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = ("model name", "flags", "Features")
    return "\n".join([platform.machine(), *dict.fromkeys(x for x in lines if x.startswith(named))])


def _build(command: list[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        compiled, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
        _run([*command, *FLAGS.split(), "-c", str(SOURCE), "-o", str(compiled)])
        # without -fopenmp, which would load a second OpenMP next to torch's
        _run([*command, "-shared", str(compiled), "-o", str(linked)])
        linked.replace(library)  # at once, since other processes may build it, too


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
    return done.stdout
