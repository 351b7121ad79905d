"""Compiled kernels: builds `kernels/` for this machine's processor, once, and loads them."""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch  # also loads OpenMP, which the library needs

from support.output import remark

SOURCE = Path(__file__).with_name("kernels") / "library.cpp"
# A compiler that may fuse a product with a sum does so in one copy of a function and not in another
# one, and a token alone would not have the bits that it has in a draft; so the source says where.
FLAGS = (
    "-std=c++17 -O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=off "
    "-fPIC"
)
# Types of hidden states and of weights in memory -> how `kernels/library.cpp` names its functions.
# Weights in fp32 that fit into 16 bits are stored so.
NAMES = {
    (torch.float32, torch.float32): "fp32",
    (torch.float32, torch.bfloat16): "fp32_bf16",
    (torch.float32, torch.float16): "fp32_fp16",
    (torch.float64, torch.float64): "fp64",
    (torch.bfloat16, torch.bfloat16): "bf16",
}
TYPES = frozenset(dtype for dtype, _ in NAMES)  # of hidden states
CAPABILITY = "ATEN_CPU_CAPABILITY"  # torch's variable that keeps it from newer instructions
# The kernels also obey it, so that one variable shows what a run is like on an older processor.
WITHOUT = {"avx2": ("-mno-avx512f",), "default": ("-mno-avx512f", "-mno-avx")}
_SECONDS = 300  # that a compiler may take
_HASH = hashlib.sha256().digest_size
_N, _AT = ctypes.c_int64, ctypes.c_void_p
# The functions in `models/cpu/kernels/` take so many numbers, then so many addresses.
_FUNCTIONS = {"pack": (2, 2), "linear": (3, 4), "run": (0, 3)}


class NoKernels(Exception):
    """The kernels cannot be built or loaded here; says why."""


@cache
def kernels_of(dtype: torch.dtype, stored: torch.dtype) -> SimpleNamespace:
    """Return the library's functions for types of `NAMES`; raises as `kernels` does."""
    functions = SimpleNamespace()
    for name, (numbers, addresses) in _FUNCTIONS.items():
        # The library exports addresses, since instances of templates have mangled names.
        address = _AT.in_dll(kernels(), f"adt_{name}_{NAMES[dtype, stored]}").value
        assert address is not None, name
        takes = [*numbers * [_N], *addresses * [_AT]]
        setattr(functions, name, ctypes.CFUNCTYPE(None, *takes)(address))
    return functions


def lanes(dtype: torch.dtype) -> int:
    """Return how many numbers the kernels compute at once; raises as `kernels` does."""
    registers = _N.in_dll(kernels(), "adt_vector_bytes").value
    return registers // max(dtype.itemsize, 4)  # bfloat16 is computed in fp32


def check_size(structure: type[ctypes.Structure]) -> None:
    """Compare a structure with that of its name in C++, where every field must lie alike.

    Else kernels would read and write foreign memory: a RuntimeError.
    """
    size = _N.in_dll(kernels(), f"adt_size_{structure.__name__}").value
    if ctypes.sizeof(structure) != size:
        raise RuntimeError(
            f"{structure.__name__}: found {ctypes.sizeof(structure)} bytes in Python and {size} in "
            f"{SOURCE.parent}; both must have the same fields in the same order"
        )


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler with its flags for this processor."""

    command: list[str]
    version: str
    flags: tuple[str, ...]

    @property
    def library(self) -> Path:
        """Where the library is, or will be: in the user's cache folder, by what it depends on."""
        sources = (path.read_text() for path in sorted(SOURCE.parent.iterdir()))
        command = shlex.join([*self.command, *self.flags])
        # torch's version, since the library shares its OpenMP
        inputs = (*sources, command, self.version, _processor(), torch.__version__)
        key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
        return _cache_folder() / f"kernels-{key}.so"

    def build(self, library: Path) -> None:
        """Compile the library; raises what `subprocess.run` does."""
        from support.durable import replace_file  # here, since the engine loads no settings

        # GCC's OpenMP is the one that torch has loaded already, and to link it would load a second
        # one. The code that clang makes needs one of its own.
        runtime = ["-fopenmp"] if "clang" in self.version else []
        # There, since `replace` does not work across file systems.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            compiled, linked = Path(folder, "kernels.o"), Path(folder, "kernels.so")
            _run([*self.command, *self.flags, "-c", str(SOURCE), "-o", str(compiled)])
            _run([*self.command, *runtime, "-shared", str(compiled), "-o", str(linked)])
            content = linked.read_bytes()
            # the loader passes over what follows; at once, since other processes may build it
            replace_file(library, content + hashlib.sha256(content).digest())


@cache
def kernels() -> ctypes.CDLL:
    """Return the library; the first call on a machine compiles it, which takes some seconds.

    It stays in the user's cache folder, under a name of its own for every source, compiler and
    processor. NoKernels if there is no C++ compiler, or it fails.
    """
    compiler = find_compiler()
    try:
        library = compiler.library
        if not _is_whole(library):
            if library.exists():
                remark(f"{library}: damaged, is compiled again")
            library.parent.mkdir(parents=True, exist_ok=True)
            compiler.build(library)
        # one pool of threads serves torch and the kernels, if both have the same OpenMP
        return ctypes.CDLL(str(library))
    except subprocess.CalledProcessError as error:
        command = shlex.join(compiler.command)
        raise NoKernels(f"{command} cannot compile {SOURCE}: {_reason(error.stderr)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernels(str(error)) from error


def _is_whole(library: Path) -> bool:
    """Return whether a file ends with the hash of what is before it, as `Compiler.build` writes."""
    content = library.read_bytes() if library.is_file() else b""
    return content[-_HASH:] == hashlib.sha256(content[:-_HASH]).digest()


def _reason(said: str) -> str:
    """Return the first lines of a compiler's message that name a fault, such as a full disk."""
    lines = said.strip().splitlines() or ["no message"]
    telling = [line for line in lines if re.search("error|failed|cannot|No space", line)]
    return "; ".join((telling or lines)[:3])


def find_compiler() -> Compiler:
    """Return the C++ compiler of this machine, or the one that CXX names; else raise NoKernels."""
    command = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if shutil.which(command[0]) is None:
        raise NoKernels(f"there is no C++ compiler {command[0]!r}; CXX names another one")
    try:
        return Compiler(command, version=_run([*command, "--version"]), flags=_flags())
    except (OSError, subprocess.SubprocessError) as error:
        raise NoKernels(f"{shlex.join(command)} does not run: {error}") from error


def _cache_folder() -> Path:
    """Return the user's cache folder, in the temporary one for a user who has no home."""
    home = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if not home.startswith("~"):
        return Path(home) / "adt-tree"
    folder = Path(tempfile.gettempdir()) / f"adt-tree-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():  # whose code would run here
        raise NoKernels(f"{folder} is another user's")
    return folder


def _flags() -> tuple[str, ...]:
    """Return the compiler's flags for this processor."""
    flags = FLAGS.split()
    # Compilers for processors other than x86 reject these flags.
    if " avx2 " in _processor():
        flags += WITHOUT.get(os.environ.get(CAPABILITY, ""), ())
    # Intel's multiply pairs of bf16 at half the rate of fp32 (87 against 150 GFLOP/s on a core of a
    # Sapphire Rapids); on AMD's pairs are faster
    return (*flags, "-DWIDEN") if "GenuineIntel" in _processor() else tuple(flags)


def _processor() -> str:
    """Return what tells processors of different instructions apart."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = ("vendor_id", "model name", "flags", "Features")
    telling = dict.fromkeys(line for line in lines if line.startswith(named))
    return "\n".join([platform.machine(), *telling])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
    return done.stdout
