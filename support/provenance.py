"""Where results come from: versions, revision, the code and the processor; without torch."""

import hashlib
import platform
import subprocess
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

from configs.targets import ROOT

_CODE = ("configs", "support", "models", "decoding", "drafters", "runs", "eval/bench")
_PACKAGES = ("torch", "transformers", "diffusers", "numpy")
CONTENT = "sha256:"  # before the hash of what a setting names


def versions() -> dict[str, str | None]:
    """Return the versions of Python and the libraries that decide numbers; None if missing."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def program_version() -> str:
    """Return the program's version."""
    # from the checkout: it runs from there, installed or not
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def version_line() -> str:
    """Return one line for bug reports: versions of program, torch and Python, and the revision."""
    numbers, commit = versions(), revision()
    torch = f"torch {numbers['torch'] or 'not installed'}"
    parts = (commit and f"revision {commit}", torch, f"Python {numbers['python']}")
    return ", ".join([f"adt-tree {program_version()}", *filter(None, parts)])


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
