"""Whether the folders and files that settings name are there."""

import re
import shlex
from pathlib import Path

from configs.fields import found_at, mismatch, one_of, refusing
from configs.methods import METHODS
from configs.model import EngineSettings
from configs.targets import META_FILES, ROOT, TARGETS
from models.files.chameleon_parts import find_tokenizer
from models.files.recognition import refuse_other_model, require_model_type
from models.files.weights import LIGHTNING, T5_TOKENIZERS, WEIGHT_FILES, WEIGHT_INDEXES

# Of each group one file has to be there.
_NETWORK_FILES = (("config.json", LIGHTNING), WEIGHT_FILES + WEIGHT_INDEXES)


def check_folders(settings: EngineSettings) -> None:
    """Refuse settings whose folders or files are missing, or hold another model.

    Ids of the hub are taken as they are: their files are checked when they are loaded.
    """
    # first, since check_place would call the default `owner/name/drafter` a missing folder
    _check_default_drafter(settings)
    for flag, files in (
        ("model_path", _NETWORK_FILES),
        ("drafter_path", _NETWORK_FILES),
        ("tokenizer_path", ()),
        ("text_encoder_path", (*_NETWORK_FILES, T5_TOKENIZERS)),
    ):
        path = getattr(settings, flag)
        check_place(flag, path, settings.model)
        for names in files if Path(path or "").is_dir() else ():
            if path and not any((Path(path) / name).is_file() for name in names):
                advice = f"{_inspect(settings.model, settings.model_path)} lists what is missing."
                below = Path(path) / "drafter"
                if flag == "drafter_path" and below.is_dir():  # of a training's folder
                    advice = f"Its subfolder has one: --drafter_path {shlex.quote(str(below))}."
                without = f"a folder without {one_of(names)}"
                raise mismatch(f"--{flag} {path}", without, "a checkpoint", advice)
    folder = Path(settings.model_path)
    if folder.is_dir():
        with refusing():
            refuse_other_model(settings.model, settings.model_path, folder)
            require_model_type(settings.model, folder)
    if settings.vq_path is not None and not Path(settings.vq_path).is_file():
        advice = f"Get it: {TARGETS[settings.model].sources['vq_path']}."
        path = settings.vq_path
        raise mismatch(f"--vq_path {path}", found_at(path), "a file", advice)
    _check_tokenizer(settings)


def lacks_drafter(model_path: str) -> bool:
    """Return whether a checkpoint on the hub, or in a folder that is here, has none next to it."""
    folder = Path(model_path)
    return not (folder / "drafter").is_dir() if folder.is_dir() else _is_hub_id(model_path)


def _check_default_drafter(settings: EngineSettings) -> None:
    """Refuse a model from the hub without --drafter_path: its drafter is not in the same place."""
    path = settings.model_path
    if _is_hub_id(path) and settings.drafter_path == f"{path}/drafter":
        source = TARGETS[settings.model].sources["drafter_path"]
        free = one_of(name for name, entry in METHODS.items() if not entry.drafted)
        expected = f"a folder or owner/name, since {path} is on the hub"
        advice = f"Or use --method {free}, which need no drafter. Get one: {source}."
        raise mismatch("--drafter_path", "nothing", expected, advice)


def _check_tokenizer(settings: EngineSettings) -> None:
    """Refuse a Chameleon checkpoint without its tokenizers; a hub id's files are not known yet."""
    flag = "model_path" if settings.tokenizer_path is None else "tokenizer_path"
    folder, named = Path(settings.model_path), Path(getattr(settings, flag))
    chameleon = "tokenizer_path" in TARGETS[settings.model].flags
    if chameleon and folder.is_dir() and named.is_dir():
        with refusing(f"--{flag} {getattr(settings, flag)}: "):
            find_tokenizer(folder, None if flag == "model_path" else named)


def check_place(flag: str, path: str | None, model: str) -> None:
    """Refuse a path that is neither a folder nor a hub id; the error says where the files are."""
    if path is None or Path(path).is_dir() or _is_hub_id(path):
        return
    home = ROOT / TARGETS[model].folder
    examples = dict.fromkeys(("drafter_path", "start_from"), home / "drafter")
    examples["text_encoder_path"] = home.parent / "t5/flan-t5-xl"
    example = examples.get(flag, home)
    same = Path(path).absolute() == example
    folder = "this folder, once the files are in it" if same else f"a folder such as {example}"
    source = TARGETS[model].sources.get(
        "drafter_path" if flag == "start_from" else flag, META_FILES
    )
    expected = f"{folder}, or owner/name"
    advice = f"Get it: {source}."
    if flag == "model_path":
        advice += f" {_inspect(model, path)} lists all files that {model} needs."
    raise mismatch(f"--{flag} {path}", found_at(path), expected, advice)


def _inspect(model: str, model_path: str) -> str:
    """Return the command that lists the files of a model."""
    usual = Path(model_path).absolute() == ROOT / TARGETS[model].folder
    place = "" if usual else f" --model_path {shlex.quote(model_path)}"
    return f"`python main.py inspect --model {model}{place}`"


def _is_hub_id(path: str) -> bool:
    """Return whether `path` is owner/name, not a mistyped folder: no folder `owner` is here."""
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path) is not None
    return is_id and not Path(path).parent.exists()
