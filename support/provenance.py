"""Where results come from: versions, revision, identity of checkpoint and run; without torch."""

import hashlib
import platform
import subprocess
import tomllib
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from configs.targets import ROOT

_CODE = ("configs", "support", "models", "decoding", "drafters", "runs", "eval/bench")
_PACKAGES = ("torch", "transformers", "diffusers", "numpy")
# Ends of the names of files that a model is read from; others are for people and their systems.
_READ = (
    ".json", ".safetensors", ".bin", ".ckpt", ".pt", ".pth", ".model", ".tiktoken", ".yaml",
    ".jinja", "vision_tokens.txt", "merges.txt", "vocab.txt",
)  # fmt: skip
CONTENT = "sha256:"  # before the hash of what a setting names
_BLOCK, _WHOLE, _EVERY = 1 << 16, 1 << 28, 1 << 23  # bytes


def versions() -> dict[str, str | None]:
    """Return the versions of Python and the libraries that decide numbers; None if missing."""
    numbers: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            numbers[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            numbers[package] = None
    return numbers


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the names under which two commands' hardware or versions say different things.

    Earlier commands said less: what only one of them says is unknown.
    """
    return [name for name, value in ours.items() if value != theirs.get(name, value)]


def version_line() -> str:
    """Return one line for bug reports: versions of program, torch and Python, and the revision."""
    # from the checkout: it runs from there, installed or not
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    numbers, commit = versions(), revision()
    torch = f"torch {numbers['torch'] or 'not installed'}"
    parts = (commit and f"revision {commit}", torch, f"Python {numbers['python']}")
    return ", ".join([f"adt-tree {project['version']}", *filter(None, parts)])


def revision() -> str | None:
    """Return the checkout's commit; None without git.

    It has `+changes` if tracked files differ, but for pages and their figures.
    """
    # Without a .git here, git would answer for a repository around this folder.
    commit = _git("rev-parse", "HEAD") if (ROOT / ".git").exists() else None
    if commit is None:
        return None
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return commit + ("+changes" if changes else "")


@cache
def program() -> str:
    """Return a hash of the code that decodes and measures; it needs no git."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".cpp"):
                digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def checkpoint_id(path: str | Path) -> str:
    """Return a hash that tells checkpoints apart: of a file, or of the files in a folder.

    It takes names, sizes and contents; of files above 256 MiB, 64 KiB every 8 MiB. Files of
    `tokenizer/` and `chameleon/tokenizer/` count; other folders (the drafter), and files that no
    model is read from, do not.
    """
    digest = hashlib.sha256()
    base, files = Path(path).parent, [Path(path)]
    if Path(path).is_dir():
        base, names = Path(path), ("*", "tokenizer/*", "chameleon/tokenizer/*")
        files = [file for name in names for file in base.glob(name) if file.name.endswith(_READ)]
    for path in sorted(file for file in files if file.is_file()):
        stat = path.stat()
        check = _check_sum(path.resolve(), stat.st_size, stat.st_mtime_ns)
        digest.update(f"{path.relative_to(base)}:{stat.st_size}:{check:08x}\n".encode())
    return digest.hexdigest()[:16]


@cache  # a command names the same files many times, a sweep once per method
def _check_sum(path: Path, size: int, changed: int) -> int:
    """Return a check sum of a file as it was when it was changed last."""
    check = 0
    with path.open("rb") as file:
        # all of 14 GB would take longer than an image; so would SHA-256 of small files
        for start in range(0, size, _BLOCK if size <= _WHOLE else _EVERY):
            file.seek(start)
            check = zlib.crc32(file.read(_BLOCK), check)
    return check


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def cpu_name() -> str:
    """Return the processor's name as the system gives it, or else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")  # of Linux
    for entry in cpuinfo.read_text(errors="replace").splitlines() if cpuinfo.is_file() else ():
        key, _, value = entry.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
