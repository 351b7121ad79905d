"""What a run is made of: the files and plugins that decide its images, by their content.

A path or a name on the hub may lead to other files tomorrow. So run folders, token folders,
trainings and measurements hold these hashes, and go on only with the same ones.
"""

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec, resolve_name
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from configs import recipes
from configs.fields import mismatch, refusing
from configs.targets import CHAMELEON_TOKENIZER, ROOT, TARGETS
from models.files.folders import checkpoint_folder, is_hub_id
from models.files.identity import checkpoint_id, files_read
from support.provenance import CONTENT
from support.wording import first_of

_FOLDERS = ("model_path", "drafter_path", "tokenizer_path", "text_encoder_path", "start_from")
# size and time of the last change, by file; inodes change on mounts of object stores
Files = dict[Path, tuple[int, int]]
BESIDE = " beside --model_path"  # ends of the names of files that no flag names
# files outside the model's folder that make codes of pictures
_CODECS = "vq_path", "tokenizer_path"
_CODECS_BESIDE = str(CHAMELEON_TOKENIZER), "Emu3.5-VisionTokenizer", "processor"


class Made(NamedTuple):
    """What settings name, by flag, and in words for files that no flag names."""

    files: dict[str, str]  # hashes
    commits: dict[str, str]  # of hub ids, by flag


def made_of(values: Mapping[str, Any]) -> Made:
    """Return the hashes and commits of what settings name.

    values: settings by flag; `model` and the flags of files matter. A SettingsError if the snapshot
    of a hub id is not here and cannot be fetched.
    """
    places = _places(values)
    commits = {
        flag: parts[parts.index("snapshots") + 1]
        for flag in _FOLDERS
        if flag in places and not Path(values[flag]).is_dir()
        if "snapshots" in (parts := places[flag].parts)
    }
    files = {name: CONTENT + checkpoint_id(path) for name, path in places.items()}
    files |= {f"plugin {name}": CONTENT + _code_id(name) for name in recipes.PLUGINS}
    return Made(files, commits)


def codec_of(files: Mapping[str, Any]) -> dict[str, Any]:
    """Return, of hashes by name, those of files that make codes of pictures."""
    names = *_CODECS, *(name + BESIDE for name in _CODECS_BESIDE)
    return {name: files[name] for name in names if name in files}


def files_now(values: Mapping[str, Any]) -> Files:
    """Return the files that settings name, for `refuse_changed` once they have been read."""
    found: Files = {}
    for place in _places(values).values():
        for file in files_read(place) if place.is_dir() else [place]:
            stat = file.stat()
            found[file] = stat.st_size, stat.st_mtime_ns
    return found


def refuse_changed(values: Mapping[str, Any], before: Files) -> None:
    """Refuse files that are no longer those of `before`: which of the two were read is not known.

    values, before: as `files_now` takes and returned them.
    """
    now = files_now(values)
    if changed := [str(file) for file in {**before, **now} if before.get(file) != now.get(file)]:
        got, expected = "another file meanwhile", "the file that was there when the command began"
        raise mismatch(first_of(changed), got, expected, "Run the same command again.")


def _places(values: Mapping[str, Any]) -> dict[str, Path]:
    """Return the folders and files that settings name, or that are read with these."""
    places = {}
    for flag in _FOLDERS:
        given = values.get(flag)
        if given is not None and (Path(given).is_dir() or is_hub_id(given)):
            with refusing():
                places[flag] = checkpoint_folder(given, f"--{flag}")
    vq_path = Path(values.get("vq_path") or "")
    if vq_path.is_file():
        places["vq_path"] = vq_path
    if (folder := places.get("model_path")) is not None:
        places |= _beside(folder, values)
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
        from models.codecs.codebook import tables  # here, as it imports torch

        if fitting := [path for width, path in tables(folder).items() if width >= columns]:
            parts["nearest codes"] = fitting[0]
    return parts


@cache  # as it was imported: the file may be edited while the command runs
def _code_id(plugin: str) -> str:
    """Return a hash of a plugin's code: its package, what is loaded beside it, what they import."""
    package, *inner = plugin.split(".")
    is_package = hasattr(sys.modules[plugin], "__path__")
    home = Path(sys.modules[plugin].__file__ or "").resolve().parents[len(inner) + is_package]
    loaded = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    beside = os.path.join(home, "")  # compared as text: thousands of modules are loaded
    names = [n for n, file in loaded.items() if file and os.path.realpath(file).startswith(beside)]
    files: dict[str, Path] = {}
    for name in names:  # which grow
        first = name.partition(".")[0]
        if name in files or not (first == package or _is_own(first)):
            continue
        with suppress(ImportError, ValueError, SyntaxError):  # no module, or not of Python
            files[name] = _place(name)
            names += _imports(name, files[name])
    digest = hashlib.sha256()
    for path in sorted({path for path in files.values() if path.is_file()}):
        place = path.relative_to(home) if path.is_relative_to(home) else path.name
        digest.update(f"{place}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _is_own(package: str) -> bool:
    """Return whether a package is neither this program's nor installed."""
    try:
        path = _place(package)
    except (ImportError, ValueError):
        return False
    library = any(path.is_relative_to(sysconfig.get_path(n)) for n in ("stdlib", "platstdlib"))
    installed = library or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    ours = package in ("main", "__main__") or (ROOT / package / "__init__.py").exists()
    return not ours and not installed


def _place(module: str) -> Path:
    """Return a module's file, or the folder of one without; an ImportError or ValueError if none.

    It may be imported or not; nothing is imported.
    """
    known, (parent, _, name) = sys.modules.get(module), module.rpartition(".")
    if known is None and parent:
        around = _place(parent)
        folder = around.parent if around.stem == "__init__" else around
        places: list[Any] = [folder / f"{name}.py", folder / name / "__init__.py", folder / name]
    else:
        spec = find_spec(module) if known is None else known.__spec__
        file = getattr(known, "__file__", None) or (spec and spec.has_location and spec.origin)
        places = [file, *((spec and spec.submodule_search_locations) or ())]
    for place in filter(None, places):
        if Path(place).exists():
            return Path(place).resolve()
    raise ImportError(module)


def _imports(module: str, file: Path) -> Iterator[str]:
    """Yield what a module imports anywhere, also in its functions."""
    package = module if file.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes() if file.is_file() else b"")):
        names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
        if isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            names = [source, *(f"{source}.{name}" for name in names)]
        for name in names:
            yield from accumulate(name.split("."), "{}.{}".format)
