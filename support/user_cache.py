"""The folder for what is made once on a machine: compiled kernels."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return `adt-tree` in the user's cache folder; it need not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "adt-tree"
