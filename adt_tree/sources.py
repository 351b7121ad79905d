"""From what `Pipeline.from_pretrained` is given to the settings of a model."""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from configs.command_line import read_recipe
from configs.fields import SettingsError, Values, flags_in
from configs.gone import GONE_FLAGS
from configs.model import EngineSettings
from configs.targets import ROOT, TARGETS
from models.files.folders import checkpoint_folder
from models.files.weights import read_json
from models.registry import FAMILIES

# Names in Python's libraries -> flags.
ALIASES = {"guidance_scale": "cfg", "torch_dtype": "dtype"}
SETTINGS = flags_in(EngineSettings)
_PATHS = tuple(name for name, f in SETTINGS.items() if "path" in f.metadata)
_NAMES = {*SETTINGS, "prompt", "num_images", "seed", "methods", "repeats"}
_DTYPES = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16"}


@contextmanager
def python_names() -> Iterator[None]:
    """Let errors of settings name them as Python does: `cfg` or `guidance_scale`, not `--cfg`."""
    try:
        yield
    except SettingsError as error:
        names = {flag: name for name, flag in ALIASES.items()}
        words = re.sub(
            r"--([a-z]\w*)",
            lambda m: names.get(m[1], m[1]) if m[1] in _NAMES else m[0],
            str(error),
        )
        raise SettingsError(words) from error.__cause__


def check_names(given: Iterable[str], allowed: Iterable[str], where: str) -> None:
    """Refuse names of settings that `where` does not have; the error lists those allowed."""
    known = [*allowed]
    for name in given:
        if name in GONE_FLAGS:
            raise SettingsError(f"{name}: no such setting here; {GONE_FLAGS[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, known, 2, 0.6)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            names = ", ".join(sorted(known))
            raise SettingsError(f"{name}: unknown setting of {where}; {hint}allowed: {names}")


def as_flags(settings: Mapping[str, Any]) -> Values:
    """Return settings of Python by flag; those that are None are left out.

    dtypes and devices of torch and paths become the texts that flags take.

    Raises:
        SettingsError: a setting is given by two names.
    """
    values: Values = {}
    for name, value in settings.items():
        flag = ALIASES.get(name, name)
        if value is None:
            continue
        if flag in values:
            raise SettingsError(f"{name}: found together with {flag}; allowed: one of them")
        values[flag] = _text(flag, value)
    return values


def _text(flag: str, value: Any) -> Any:
    """Return a value as the flag takes it."""
    if flag == "dtype":
        name = str(value).removeprefix("torch.")
        return _DTYPES.get(name, name)
    if isinstance(value, torch.device | os.PathLike):
        return str(value)
    return value


def source_values(source: str | os.PathLike, given: Values) -> Values:
    """Return what a source says by flag: a target's name, a recipe's file, a folder or a hub id.

    given: the caller's own values, which may name the model.

    Raises:
        SettingsError: it is none of these.
    """
    name = str(source)
    if name in TARGETS:
        if given.get("model", name) != name:
            raise SettingsError(f"model: found {given['model']!r}; allowed: {name}, as the source")
        return {"model": name} | absolute_paths(read_recipe(str(_recipe(name)), "generate_images"))
    if name.endswith((".yaml", ".yml")):
        return read_recipe(name, "generate_images")
    if not os.path.isdir(name) and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise SettingsError(
            f"from_pretrained: found {name!r}, which is no folder here; allowed: a folder, "
            f"owner/name on the hub, a recipe's .yaml file, or {', '.join(TARGETS)}"
        )
    return {"model_path": name, "model": given.get("model") or _model_in(name)}


def _recipe(name: str) -> Path:
    return ROOT / "configs" / f"{name}.yaml"


def absolute_paths(values: Values) -> Values:
    """Return a shipped recipe's values; paths that are not here are those of the checkout."""
    return {
        name: str(ROOT / value)
        if name in _PATHS and not os.path.exists(value) and (ROOT / value).exists()
        else value
        for name, value in values.items()
    }


def _model_in(path: str) -> str:
    """Return which target a folder or hub id holds, by its place, its name and its config.json."""
    for name, target in TARGETS.items():
        default = ROOT / target.folder
        same = os.path.isdir(path) and default.exists() and os.path.samefile(path, default)
        if same or f"download {path} " in target.sources["model_path"]:
            return name
    if "lumina" in path.lower():
        return "lumina_mgpt"
    try:
        config = read_json(checkpoint_folder(path, "--model_path") / "config.json")
    except ValueError as error:
        raise SettingsError(str(error)) from error
    fitting = [name for name in TARGETS if _fits(name, config)]
    if not fitting:
        raise SettingsError(
            f"{path}: config.json is of no model that is known here; allowed: a checkpoint of "
            f"{', '.join(TARGETS)}"
        )
    # LlamaGen's config.json also has all that Chameleon's has.
    return next((name for name in fitting if TARGETS[name].parts), fitting[0])


def _fits(name: str, config: dict) -> bool:
    """Return whether a config.json has the entries of a target."""
    try:
        FAMILIES[name].spec(config)
    except ValueError:
        return False
    return True
