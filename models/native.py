"""Compiled kernels: builds `models/kernels/` for this machine's processor, once, and loads them."""

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

import torch  # also loads OpenMP, which the library needs
from torch import Tensor

from support.user_cache import cache_folder

SOURCE = Path(__file__).with_name("kernels") / "library.cpp"
FLAGS = "-std=c++17 -O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -fPIC"
NAMES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}
_SECONDS = 300  # that a compiler may take
_N, _AT = ctypes.c_int64, ctypes.c_void_p


class NoKernels(Exception):
    """The kernels cannot be built or loaded here; says why."""


# What the functions in `models/kernels/` take: n a number, f one in fp64, @ an address.
_OF_NETWORKS = {"pack": "nn@@", "linear": "nnn@@@@", "run": "@@@", "log_p": "nnnnff@@", "read": "@",
                "before": "nnnnnnn@@@@@@@"}  # fmt: skip
_OF_ROUNDS = {
    "children": "nnnn@nn@nnf@n@@",
    "visible": "nn@@",
    "extend": "n@nnn@@@n@@@",
    "best": "nnnn@@",
    "ended": "nnn@@@",
    "prune": "n@@@@",
    "graft": "n@n@@@ff@@",
    "move": "nnn@@nnnnnn@",
    "open": "nnnnn@@n@nn@nnn@nn@@",
    "ahead": "nnnnn@@@@",
    "remember": "nnnn" + 9 * "@",
    "lineage": "nnn" + 11 * "@",
    "recall": "@",
    "mix": "nnn@nn@nn@nnn@",
}
_TYPES = {"n": _N, "f": ctypes.c_double, "@": _AT}


class Kernels:
    """The functions of the library for hidden states of a type; those of rounds only for types in
    which probabilities are.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype):
        computes = dtype != torch.bfloat16
        for name, takes in (_OF_NETWORKS | (_OF_ROUNDS if computes else {})).items():
            place = ctypes.c_void_p.in_dll(library, f"adt_{name}_{NAMES[dtype]}").value
            signature = ctypes.CFUNCTYPE(None, *(_TYPES[kind] for kind in takes))
            setattr(self, name, signature(place))


@cache
def kernels_of(dtype: torch.dtype) -> Kernels:
    """Return the functions for a type of `NAMES`; raises as `kernels` does."""
    return Kernels(kernels(), dtype)


def lanes(dtype: torch.dtype) -> int:
    """Return how many numbers the kernels compute at once."""
    return 8 if dtype == torch.float64 else 16


class Panels:
    """A matrix in the order in which the kernels read it."""

    def __init__(self, weight: Tensor):
        """Copy weight (outputs, depth), which lies in a CPU's memory."""
        self.outputs, self.depth = weight.shape
        step = 2 * lanes(weight.dtype)
        self.memory = weight.new_empty(-(-self.outputs // step) * step * self.depth)
        self._kernels, self.address = kernels_of(weight.dtype), self.memory.data_ptr()
        source = weight.contiguous()
        self._kernels.pack(self.outputs, self.depth, source.data_ptr(), self.address)

    @staticmethod
    def fit(weight: Tensor) -> bool:
        """Return whether a weight can be copied so."""
        plain = type(weight.data) is Tensor and weight.device.type == "cpu"
        return plain and weight.dtype in NAMES and weight.shape[1] % 2 == 0

    def take(self, x: Tensor) -> bool:
        """Return whether `multiply` takes x, and no compiler follows torch's operations."""
        fits = type(x) is Tensor and x.dtype == self.memory.dtype and x.shape[-1] == self.depth
        return fits and x.is_cpu and not torch.compiler.is_compiling()

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x weight^T + bias, for x (..., depth) of the weight's type."""
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.outputs)
        self._kernels.linear(
            x.numel() // self.depth, self.depth, self.outputs, x.data_ptr(), self.address,
            None if bias is None else bias.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        return out


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


def _flags() -> str:
    """Return the compiler's flags for this processor."""
    # Intel's multiply pairs of bf16 at half the rate of fp32 (87 against 150 GFLOP/s on a core of a
    # Sapphire Rapids); on AMD's pairs are faster
    return f"{FLAGS} -DWIDEN" if "GenuineIntel" in _processor() else FLAGS


def _key(command: list[str]) -> str:
    """Return a hash of what the library depends on."""
    version = _run([*command, "--version"])
    sources = (path.read_text() for path in sorted(SOURCE.parent.iterdir()))
    parts = *sources, _flags(), shlex.join(command), version, _processor()
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return what tells processors of different instructions apart."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = ("vendor_id", "model name", "flags", "Features")
    return "\n".join([platform.machine(), *dict.fromkeys(x for x in lines if x.startswith(named))])


def _build(command: list[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        compiled, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
        _run([*command, *_flags().split(), "-c", str(SOURCE), "-o", str(compiled)])
        # without -fopenmp, which would load a second OpenMP next to torch's
        _run([*command, "-shared", str(compiled), "-o", str(linked)])
        linked.replace(library)  # at once, since other processes may build it, too


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
    return done.stdout
