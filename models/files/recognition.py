"""Which published model a checkpoint folder holds, so that no model reads another one's files.

Anole's and Lumina-mGPT's files are alike to the last key. Read as the other one's they make images
that are no pictures, so here their names have to tell them apart.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from configs.fields import SettingsError, refusing
from configs.targets import folder_names
from models.files.chameleon_parts import stored_names
from models.files.entries import MODEL_TYPES, require_model
from models.files.weights import read_config
from support.output import remark

_EMU3_5_IDS = 282_926
GEMMA_IDS = 256_000  # of Gemma itself, to which Liquid adds image codes
# Of a vocabulary with 16,384 image codes from 155,000 on; that of Chameleon's models is 65,536.
_LUMINA_2_IDS = range(155_000 + 16_384, 180_000)
# Values of --model whose files are alike; the first takes no small vocabulary.
_CHAMELEONS = ("lumina_mgpt2", "tiny", "anole", "lumina_mgpt")


Holds = Callable[[dict, Path], bool]


@dataclass(frozen=True)
class Published:
    title: str  # as its authors write it
    targets: tuple[str, ...]  # values of --model that read its files
    words: tuple[str, ...]  # of its folders' names, in small letters with dashes
    # whether the config.json of a folder, with its weights' keys, can only be this model's
    holds: Holds = lambda config, folder: False
    instead: str | None = None  # what to use where no --model reads its files


def _typed(*kinds: str) -> Holds:
    return lambda config, _: config.get("model_type") in kinds


def _is_emu3_5(config: dict, folder: Path) -> bool:
    # BAAI/Emu3-Gen has the same model_type, another vocabulary, and no norms of queries; the sizes
    # tell where weights are still missing
    return config.get("model_type") in MODEL_TYPES["emu3_5"] and (
        config.get("vocab_size") == _EMU3_5_IDS
        or any(".q_norm." in key for key in stored_names(folder))
    )


def _is_lumina_2(config: dict, folder: Path) -> bool:
    ids = config.get("vocab_size")
    return config.get("model_type") == "chameleon" and type(ids) is int and ids in _LUMINA_2_IDS


def _is_liquid(config: dict, folder: Path) -> bool:
    return config.get("model_type") == "gemma" and config.get("vocab_size") != GEMMA_IDS


# The first that holds is taken, so a model stands before those that it resembles.
_PUBLISHED = (
    Published("Emu3.5", ("emu3_5",), ("emu3-5", "emu3p5", "emu35"), _is_emu3_5),
    Published(
        "Lumina-mGPT 2.0", ("lumina_mgpt2",), ("lumina-mgpt-2", "lumina-mgpt2"), _is_lumina_2
    ),
    Published("GLM-Image", ("glm_image",), ("glm-image",), _typed("glm_image")),
    Published("SimpleAR", (), ("simplear",)),
    Published("Liquid", ("liquid",), ("liquid",), _is_liquid),
    Published("JanusFlow", (), ("janusflow", "janus-flow")),
    Published("Emu3-Chat", (), ("emu3-chat",)),
    Published(
        "Emu3 in its authors' files",
        (),
        (),
        _typed("Emu3"),
        instead="use BAAI/Emu3-Gen-hf, which has the same weights",
    ),
    Published("Emu3", ("emu3",), ("emu3",), _typed("emu3")),
    Published("Janus-Pro", ("janus_pro",), ("janus",), _typed(*MODEL_TYPES["janus_pro"])),
    Published(
        "LlamaGen", ("llamagen", "llamagen2"), ("llamagen",), lambda c, _: "caption_dim" in c
    ),
    Published("Image GPT", ("image_gpt",), ("image-gpt",), lambda c, _: "num_pixels" in c),
    Published("Lumina-mGPT", ("lumina_mgpt",), ("lumina",)),
    Published("Anole", ("anole", "tiny"), ("anole",)),
)


def refuse_other_model(model: str, path: str, folder: Path) -> None:
    """Refuse a folder that holds another published model's files than those of --model.

    Where only the name of the folder around it says so, this is a remark on stderr. path: the
    folder or hub id, as it was given.
    """
    evidence = _evidence(path, folder)
    if evidence is None or model in evidence.published.targets:
        return
    published, title = evidence.published, evidence.published.title
    use = " or ".join(f"--model {target}" for target in published.targets)
    advice = f"use {use}" if use else published.instead or f"no --model here reads {title}"
    text = f"--model {model}: {path} holds {title}, as {evidence.source} says; {advice}"
    if evidence.certain:
        raise SettingsError(text)
    remark(text)


def require_model_type(model: str, folder: Path) -> None:
    """Refuse a folder whose config.json has a model_type that --model does not read."""
    config = _config(folder)
    if config is not None and model in MODEL_TYPES:
        with refusing(f"{folder}: "):
            require_model(config, model)


def targets_in(path: str, folder: Path) -> tuple[str, ...]:
    """Return the values of --model that may read a folder's files; none where nothing tells.

    Where only the folder around it has a name that tells, those that it names come first.
    """
    evidence = _evidence(path, folder)
    told = () if evidence is None else evidence.published.targets
    if evidence is not None and evidence.certain:
        return told
    chameleon = (_config(folder) or {}).get("model_type") == "chameleon"
    return tuple(sorted(_CHAMELEONS, key=lambda name: name not in told)) if chameleon else ()


@dataclass(frozen=True)
class _Evidence:
    published: Published
    source: str  # in words
    certain: bool = True  # enough to refuse another --model


def _config(folder: Path) -> dict | None:
    """Return config.json; None where it cannot be read: whoever loads the folder names that."""
    try:
        return read_config(folder)
    except ValueError:
        return None


def _evidence(path: str, folder: Path) -> _Evidence | None:
    """Return the strongest sign of a folder's model: its files, its own name, the one around it."""
    if (config := _config(folder)) is None:
        return None
    name, around = folder_names(path)
    named = _named(name)
    for published in _PUBLISHED:
        if published.holds(config, folder):
            if named is not None and not named.targets:  # Emu3-Chat's config.json is Emu3's
                return _Evidence(named, f"the folder's name {name!r}")
            return _Evidence(published, "its config.json")
    if published := _named(folder_names(str(config.get("_name_or_path")))[0]):
        return _Evidence(published, "_name_or_path in its config.json")
    if named is not None:
        return _Evidence(named, f"the folder's name {name!r}")
    if published := _named(around):
        return _Evidence(published, f"the folder {around!r} around it", certain=False)
    return None


def _named(name: str) -> Published | None:
    """Return the model that a name tells; None if it tells none, or several."""
    words = "-" + re.sub("[^a-z0-9]+", "-", name.lower())
    told = {
        word: published
        for published in _PUBLISHED
        for word in published.words
        if f"-{word}" in words  # Lumina is not in illumina
    }
    for word in [*told]:
        if any(word in longer for longer in told if longer != word):  # Emu3 is in Emu3-Chat
            del told[word]
    return next(iter(told.values())) if len(told) == 1 else None
