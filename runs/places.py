"""Whether the folders and files of settings are there."""

import re
from pathlib import Path

from configs.fields import SettingsError
from configs.schema import RunSettings
from configs.targets import META_FILES, MODELS, ROOT, SOURCES
from models.files.chameleon_parts import NEEDED
from models.files.names import T5_TOKENIZERS, WEIGHT_FILES, WEIGHT_INDEXES

_NETWORK_FILES = (
    ("config.json",),
    WEIGHT_FILES + WEIGHT_INDEXES,
)  # of each group one has to be there


def check_folders(settings: RunSettings) -> None:
    """A SettingsError unless the folders of a run are there with their files, or are hub ids, and so is the file of
    image codes."""
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
                found = f"found a folder without {' or '.join(names)}"
                raise SettingsError(
                    f"--{flag} {path}: {found}; allowed: one with it; `main.py inspect` says more"
                )
    if settings.vq_path is not None and not Path(settings.vq_path).is_file():
        raise SettingsError(
            f"--vq_path {settings.vq_path}: found no such file; allowed: {SOURCES['llamagen']['vq_path']}"
        )
    elsewhere = None if settings.tokenizer_path is None else Path(settings.tokenizer_path)
    folders = [Path(settings.model_path), *([] if elsewhere is None else [elsewhere])]
    if settings.model not in NEEDED or not all(folder.is_dir() for folder in folders):
        return  # the files of a hub id are known when it has been downloaded
    try:
        NEEDED[settings.model](Path(settings.model_path), elsewhere)
    except ValueError as error:
        flag = "model_path" if elsewhere is None else "tokenizer_path"
        raise SettingsError(f"--{flag} {getattr(settings, flag)}: {error}") from error


def check_place(flag: str, path: str | None, model: str) -> None:
    """A SettingsError, with the place where users get the files, unless a path is a folder or a hub id."""
    if path is not None and not Path(path).is_dir() and not _is_hub_id(path):
        home = ROOT / MODELS[model]
        examples = dict.fromkeys(("drafter_path", "start_from"), home / "drafter")
        examples["text_encoder_path"] = home.parent / "t5/flan-t5-xl"
        allowed = f"a folder such as {examples.get(flag, home)}, or owner/name"
        source = SOURCES[model].get("drafter_path" if flag == "start_from" else flag, META_FILES)
        raise SettingsError(
            f"--{flag} {path}: found no such folder; allowed: {allowed}; the files: {source}"
        )


def _is_hub_id(path: str) -> bool:
    """Whether `path` is owner/name rather than a mistyped folder: no folder `owner` is here."""
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path) is not None
    return is_id and not Path(path).parent.exists()
