"""What a run is made of: the files and plugins that decide its images, by their content.

A path or a name on the hub may lead to other files tomorrow. So run folders, token folders,
trainings and measurements hold these hashes, and go on only with the same ones.
"""

import hashlib
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from configs import recipes
from configs.fields import refusing
from configs.targets import CHAMELEON_TOKENIZER, ROOT, TARGETS
from models.files.folders import checkpoint_folder, is_hub_id
from support.provenance import CONTENT, checkpoint_id

_FOLDERS = ("model_path", "drafter_path", "tokenizer_path", "text_encoder_path", "start_from")
BESIDE = " beside --model_path"  # ends of the names of files that no flag names


def made_of(values: Mapping[str, Any], download: bool = True) -> dict[str, str]:
    """Return hashes of what settings name: by flag, and in words for files that no flag names.

    Args:
        values: settings by flag; `model` and the flags of files matter.
        download: whether the snapshot of a hub id may be fetched.

    Raises:
        SettingsError: the snapshot of a hub id is not here and cannot be fetched.
    """
    places = _places(values, download)
    vq_path = Path(values.get("vq_path") or "")
    if vq_path.is_file():
        places["vq_path"] = vq_path
    if (folder := places.get("model_path")) is not None:
        places |= _beside(folder, values)
    made = {name: CONTENT + checkpoint_id(path) for name, path in places.items()}
    return made | {f"plugin {name}": CONTENT + _code_id(name) for name in recipes.PLUGINS}


def commits(values: Mapping[str, Any], download: bool = True) -> dict[str, str]:
    """Return the commits of the hub ids among settings, by flag; arguments as of `made_of`."""
    found = {}
    for flag, folder in _places(values, download).items():
        if not Path(values[flag]).exists() and "snapshots" in folder.parts:
            found[flag] = folder.parts[folder.parts.index("snapshots") + 1]
    return found


def _places(values: Mapping[str, Any], download: bool) -> dict[str, Path]:
    """Return the folders that settings name, by flag; a hub id's is its snapshot."""
    places = {}
    for flag in _FOLDERS:
        given = values.get(flag)
        if given is not None and Path(given).exists():
            places[flag] = Path(given)
        elif given is not None and is_hub_id(given):
            with refusing():
                places[flag] = checkpoint_folder(given, f"--{flag}", download)
    return places


def _beside(folder: Path, values: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files that are read without a flag of their own, by words for errors."""
    target = TARGETS[values.get("model", "tiny")]
    homes = [folder.absolute().parent, (ROOT / target.folder).parent]
    names = target.beside
    if "tokenizer_path" in target.flags and values.get("tokenizer_path") is None:
        names, homes = (str(CHAMELEON_TOKENIZER),), homes[:1]
    paths = {name: [home / name for home in homes if (home / name).exists()] for name in names}
    parts = {name + BESIDE: found[0] for name, found in paths.items() if found}
    if (columns := values.get("lantern_k")) is not None:
        from models.codecs.codebook import table_path, table_widths  # here, as it imports torch

        if widths := [width for width in table_widths(folder) if width >= columns]:
            parts["nearest codes"] = table_path(folder, 0, min(widths))
    return parts


@cache  # as it was imported: the file may be edited while the command runs
def _code_id(plugin: str) -> str:
    """Return a hash of a plugin's code: its package, and the files beside it that it imports."""
    package, *inner = plugin.split(".")
    file = sys.modules[plugin].__file__ or ""
    is_package = hasattr(sys.modules[plugin], "__path__")
    home = Path(file).resolve().parents[len(inner) + is_package]
    libraries = {Path(path) for path in sysconfig.get_paths().values()}
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"main", "__main__"}
    files = set()
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/").resolve()
        first = name.partition(".")[0]
        installed = any(path.is_relative_to(library) for library in libraries)
        beside = path.is_relative_to(home) and first not in ours and not installed
        if path.is_file() and (first == package or beside):
            files.add(path)
    digest = hashlib.sha256()
    for path in sorted(files):
        name = str(path.relative_to(home)) if path.is_relative_to(home) else path.name
        digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
