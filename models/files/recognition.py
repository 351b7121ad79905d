"""Which published model a checkpoint folder holds, so that no model reads another one's files.

A target's entry in configs/targets.py has its signs. Where files are alike, as Anole's and
Lumina-mGPT's are to the last key, the folder's name has to tell: read as the other model's they
make images that are no pictures.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from configs.fields import SettingsError, mismatch, one_of
from configs.targets import TARGETS, Signs, folder_names, is_emu3_5
from support.output import remark

Keys = Callable[[], set[str]]  # of the weights in a folder, read only where they tell


def _is_chat(config: dict, _: Keys) -> bool:
    text = config.get("text_config")
    return isinstance(text, dict) and text.get("max_position_embeddings") == 131_072


def _is_emu3(config: dict, keys: Keys) -> bool:
    return not is_emu3_5(config, keys)


_META = "Meta's Chameleon, which makes no images"
# Published models that no --model reads, and what to use.
_UNREAD = {
    Signs("SimpleAR", ("simplear",)): "",
    Signs("JanusFlow", ("janus-?flow",)): "",
    Signs("Emu3-Chat", ("emu3-chat",), ("emu3",), also=_is_chat): "",
    Signs("Emu3-Stage1", ("emu3-stage1",)): "",
    Signs("Emu3 in its authors' files", (), ("Emu3",), also=_is_emu3): (
        "for Emu3-Gen use BAAI/Emu3-Gen-hf, which has the same weights"
    ),
    Signs(_META, ("chameleon-7b$", "chameleon-30b$")): "use --model anole with Anole's files",
}


def require_model(config: Mapping[str, Any], model: str) -> str | None:
    """Return `model_type` of a config.json; a SettingsError unless --model reads it."""
    signs, kind = TARGETS[model].signs, config.get("model_type")
    if signs.model_types and not signs.shared and kind not in signs.model_types:
        expected = f"{one_of(map(repr, signs.model_types))} for --model {model}"
        raise mismatch("config.json: model_type", repr(kind), expected)
    return kind


def refuse_other_model(model: str, path: str, config: dict, keys: Keys) -> None:
    """Refuse a folder that holds another published model's files than those of --model.

    Where only the folder around it has the other model's name, this is a remark on stderr.

    Args:
        model: a name of TARGETS.
        path: the folder or hub id, as it was given.
        config: its config.json.
        keys: returns the keys of its weights.
    """
    evidence = _evidence(path, config, keys)
    if evidence is None or model in evidence.targets:
        return
    use = " or ".join(f"--model {target}" for target in evidence.targets)
    title = evidence.signs.title
    advice = _UNREAD.get(evidence.signs) or (
        f"use {use}" if use else f"no --model here reads {title}"
    )
    text = f"--model {model}: {path} holds {title}, as {evidence.source} says; {advice}"
    if evidence.certain:
        raise SettingsError(text)
    remark(text)


def targets_in(path: str, config: dict, keys: Keys) -> tuple[str, ...]:
    """Return the values of --model that may read a folder's files; none where nothing tells.

    Where only the folder around it has a name that tells, the targets of that name come first.
    """
    evidence = _evidence(path, config, keys)
    if evidence is not None and evidence.certain:
        return evidence.targets
    told, kind = () if evidence is None else evidence.targets, config.get("model_type")
    of_type = [name for name, entry in TARGETS.items() if kind in entry.signs.model_types]
    return tuple(sorted(of_type, key=lambda name: name not in told))


@dataclass(frozen=True)
class _Evidence:
    signs: Signs
    source: str  # in words
    certain: bool = True  # enough to refuse another --model

    @property
    def targets(self) -> tuple[str, ...]:
        names = (name for name, entry in TARGETS.items() if entry.signs == self.signs)
        return tuple(sorted(names, key=lambda name: TARGETS[name].hub is None))  # tiny last


def _evidence(path: str, config: dict, keys: Keys) -> _Evidence | None:
    """Return the strongest sign of a folder's model: its files, its own name, the one around it."""
    name, around = folder_names(path)
    named, keys = _named(name), cache(keys)
    for signs in (*_UNREAD, *(entry.signs for entry in TARGETS.values())):
        if signs.hold(config, keys):
            if named in _UNREAD:  # files of JanusFlow are like Janus's
                return _Evidence(named, f"the folder's name {name!r}")
            return _Evidence(signs, "its config.json")
    before = _named(folder_names(str(config.get("_name_or_path")))[0])
    # other models were trained from Meta's, and name it
    if before is not None and before.title != _META:
        return _Evidence(before, "_name_or_path in its config.json")
    if named is not None:
        return _Evidence(named, f"the folder's name {name!r}")
    if (other := _named(around)) is not None:
        return _Evidence(other, f"the folder {around!r} around it", certain=False)
    return None


def _named(name: str) -> Signs | None:
    """Return the model that a name tells; None if it tells none, or several."""
    words = "-" + re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    told = {
        word: signs
        for signs in dict.fromkeys((*_UNREAD, *(entry.signs for entry in TARGETS.values())))
        for word in signs.words
        if re.search(f"-{word}", words)  # Lumina is not in illumina
    }
    for word in [*told]:
        if any(word in longer for longer in told if longer != word):  # Emu3 is in Emu3-Chat
            del told[word]
    return next(iter(told.values())) if len(set(told.values())) == 1 else None
