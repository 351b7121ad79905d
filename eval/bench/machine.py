"""The processor's name."""

import platform
from pathlib import Path

_LINUX = Path("/proc/cpuinfo")


def cpu_name() -> str:
    """Return the processor's name as the system gives it, or else its architecture."""
    if _LINUX.is_file():
        for line in _LINUX.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
