"""The files that settings name are looked at here, once, by whoever opens them.

The command line calls `check_files` before torch is loaded, loaders call `open_folder`, `inspect`
prints what they raise. A hub id's files are known when its snapshot is here.
"""

import re
import shlex
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from configs.fields import Flag, found_at, mismatch, one_of, refusing
from configs.methods import undrafted_methods
from configs.targets import META_FILES, ROOT, TARGETS, inner_folder
from models.files.chameleon_parts import find_tokenizer, stored_names
from models.files.recognition import refuse_other_model, require_model
from models.files.weights import (
    LIGHTNING,
    T5_TOKENIZERS,
    WEIGHT_FILES,
    WEIGHT_INDEXES,
    read_config,
    weight_files,
)

if TYPE_CHECKING:
    from configs.model import EngineSettings

_AUTHORS = ("consolidated*.pth", "*/*/consolidated*.pth")  # Meta's files, and Anole's: models/7b
_OTHERS = ("*.h5", "*.msgpack", "*.onnx")  # the same weights for other programs
_PART = Path(TARGETS["glm_image"].folder).name  # what is read of its whole repository
_NETWORK = (("config.json", LIGHTNING), WEIGHT_FILES + WEIGHT_INDEXES)
# Whether hub ids lead only to snapshots that are here, as in a dry run, which fetches nothing.
LOCAL: ContextVar[bool] = ContextVar("LOCAL", default=False)
# Snapshots that this process reads, by cache and hub id. The id may lead to another commit between
# the loading of a file and its hash.
_READ: dict[tuple[str, str], str] = {}
# Of each group one file has to be there.
_FILES = {
    "model_path": _NETWORK,
    "drafter_path": _NETWORK,
    "start_from": _NETWORK,
    "text_encoder_path": (*_NETWORK, T5_TOKENIZERS),
    "tokenizer_path": (),
}


@dataclass(frozen=True)
class Folder:
    """A folder whose files are there and, of --model_path, are the model's."""

    path: Path
    config: dict  # config.json; empty in a folder of tokenizers
    weights: list[Path]  # all shards

    def __truediv__(self, name: str) -> Path:
        return self.path / name


def open_folder(flag: str, given: str, model: str | None) -> Folder:
    """Return the folder that a flag names.

    Args:
        flag: without its dashes.
        given: its value, a folder or a hub id.
        model: the value of --model; None where errors need not say where users get the files.

    Raises:
        SettingsError: no folder and no hub id, a file is missing, or another model's files. It says
            where users get the files.
        ValueError: the hub does not deliver the snapshot.
    """
    if model and not Path(given).is_dir() and not is_hub_id(given):
        raise _no_folder(flag, given, model)
    folder = checkpoint_folder(given, f"--{flag}")
    for names in _FILES[flag]:
        if not any((folder / name).is_file() for name in names):
            advice = f"Get it: {_source(flag, model)}." if model else ""
            if flag == "drafter_path" and (folder / "drafter").is_dir():  # of a training's folder
                below = shlex.quote(str(folder / "drafter"))
                advice = f"Its subfolder has one: --drafter_path {below}."
            elif flag == "model_path" and any(any(folder.glob(pattern)) for pattern in _AUTHORS):
                advice = f"It holds the authors' files, which are not read. {advice}"
            without = f"a folder without {one_of(names)}"
            raise mismatch(Flag(flag, given), without, "a checkpoint", advice)
    if not _FILES[flag]:
        return Folder(folder, {}, [])
    config = read_config(folder)
    if flag == "model_path":
        assert model is not None, "it tells how the files are read"
        refuse_other_model(model, given, config, lambda: stored_names(folder))
        with refusing(str(folder)):
            require_model(config, model)
    with refusing(Flag(flag)):
        return Folder(folder, config, weight_files(folder))


def check_files(settings: "EngineSettings") -> None:
    """Open every folder that the settings name, but for hub ids, and look for the other files."""
    # first, since `owner/name/drafter` would be called a missing folder
    _check_default_drafter(settings)
    for flag in [flag for flag in _FILES if flag != "start_from"]:
        check_folder(flag, getattr(settings, flag), settings.model)
    if settings.vq_path is not None and not Path(settings.vq_path).is_file():
        raise _no_file("vq_path", settings.vq_path, settings.model, "a file")
    _check_tokenizer(settings)


def check_folder(flag: str, given: str | None, model: str) -> None:
    """Open a folder that a flag names, if it does and this is no hub id."""
    if given is not None and not is_hub_id(given):
        open_folder(flag, given, model)


def comes_without_drafter(model_path: str) -> bool:
    """Return whether a checkpoint on the hub, or in a folder that is here, has none next to it."""
    folder = Path(model_path)
    return not (folder / "drafter").is_dir() if folder.is_dir() else is_hub_id(model_path)


def is_hub_id(path: str) -> bool:
    """Return whether `path` is owner/name, not a mistyped folder: no folder `owner` is here."""
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path) is not None
    return is_id and not Path(path).parent.exists()


def checkpoint_folder(path: str, flag: str) -> Path:
    """Return the local folder of a checkpoint: `path` itself, or the snapshot of a hub id.

    A process that has read a snapshot stays with it. Of GLM-Image's whole repository it is the part
    that is read. flag: that named it, for errors. ValueError if path is neither, or a snapshot is
    not here and cannot be fetched: with HF_HUB_OFFLINE, or where `LOCAL` holds, it never is.
    """
    folder = Path(path)
    if folder.is_dir():
        return inner_folder(folder, _PART)
    if not is_hub_id(path):
        raise ValueError(f"{flag}: {path!r} is neither a folder nor a hub id like 'owner/name'")
    # imported here, since a local folder does without it
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    offline, place = constants.HF_HUB_OFFLINE, (constants.HF_HUB_CACHE, path)
    local = LOCAL.get()
    try:
        root = _READ.get(place) or snapshot_download(
            path, local_files_only=offline or local, ignore_patterns=list(_OTHERS)
        )
        if not local:
            _READ[place] = root
        return inner_folder(Path(root), _PART)
    except LocalEntryNotFoundError as error:
        if offline:
            why = f"HF_HUB_OFFLINE is set: `hf download {path}` where it is not"
        elif local:
            why = f"`hf download {path}` fetches it"
        else:
            why = (
                f"the hub did not deliver it: {str(error).rstrip('.')}. Download it on a machine "
                f"with access to the hub, with `hf download {path} --local-dir FOLDER`, and give "
                f"the folder to {flag}"
            )
        absence = f"{path!r} is no folder here and not in the hub's cache {constants.HF_HUB_CACHE}"
        raise ValueError(f"{flag}: {absence}; {why}") from error
    except Exception as error:  # the hub's, and those of the libraries that transfer the files
        raise ValueError(
            f"{flag}: {path!r} is no folder here, and the hub did not deliver it: {error}"
        ) from error


def _check_default_drafter(settings: "EngineSettings") -> None:
    """Refuse a model from the hub without --drafter_path: its drafter is not in the same place."""
    path = settings.model_path
    if is_hub_id(path) and settings.drafter_path == f"{path}/drafter":
        free = undrafted_methods()
        expected = f"a folder or owner/name, since {path} is on the hub"
        source = _source("drafter_path", settings.model)
        advice = f"Or use --method {free}, which need no drafter. Get one: {source}."
        raise mismatch(Flag("drafter_path"), "nothing", expected, advice)


def _check_tokenizer(settings: "EngineSettings") -> None:
    """Refuse a Chameleon checkpoint without its tokenizers; a hub id's files are not known yet."""
    flag = "model_path" if settings.tokenizer_path is None else "tokenizer_path"
    folder, named = Path(settings.model_path), Path(getattr(settings, flag))
    chameleon = "tokenizer_path" in TARGETS[settings.model].flags
    if chameleon and folder.is_dir() and named.is_dir():
        with refusing(Flag(flag, getattr(settings, flag))):
            find_tokenizer(folder, None if flag == "model_path" else named)


def _no_folder(flag: str, path: str, model: str) -> Exception:
    """Return the error of a path that is neither a folder nor a hub id."""
    home = ROOT / TARGETS[model].folder
    examples = dict.fromkeys(("drafter_path", "start_from"), home / "drafter")
    examples["text_encoder_path"] = home.parent / "t5/flan-t5-xl"
    example = examples.get(flag, home)
    same = Path(path).absolute() == example
    folder = "this folder, once the files are in it" if same else f"a folder such as {example}"
    more = f" {_inspect(model, path)} lists all files that {model} needs."
    return _no_file(flag, path, model, f"{folder}, or owner/name", more * (flag == "model_path"))


def _no_file(flag: str, path: str, model: str, expected: str, more: str = "") -> Exception:
    advice = f"Get it: {_source(flag, model)}.{more}"
    return mismatch(Flag(flag, path), found_at(path), expected, advice)


def _source(flag: str, model: str) -> str:
    """Return where users get the files of a flag."""
    name = "drafter_path" if flag == "start_from" else flag
    return TARGETS[model].sources.get(name, META_FILES)


def _inspect(model: str, model_path: str) -> str:
    """Return the command that lists the files of a model."""
    usual = Path(model_path).absolute() == ROOT / TARGETS[model].folder
    path_flag = "" if usual else f" --model_path {shlex.quote(model_path)}"
    return f"`python main.py inspect --model {model}{path_flag}`"
