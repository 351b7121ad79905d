"""The recipe that `tune` writes: the fastest method, and all settings under which it is that.

Under `tuned` is what a reader may want to know: date, revision, the conditions under which the
method won, and the table of all methods.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from configs.fields import Values, flags_in, settings_dict
from configs.model import EngineSettings
from configs.recipes import TUNED, Known, method_flags, read_recipe
from configs.schema import RunSettings
from support.output import remark
from support.provenance import revision
from support.wording import differences, first_of

PLACE = Path("outputs/tuned")  # of recipes whose file is not named
_ELSEWHERE = ("device", "vq_device")  # settings that a recipe leaves to the machine
_FIRST = "# The fastest lossless method of a model on a machine; `python main.py tune` wrote it.\n"


def tuned_place(settings: EngineSettings, download: bool = True) -> Path:
    """Return the recipe of a model under some conditions, whatever the method.

    download: whether the snapshot of a hub id may be fetched; a SettingsError without it.
    """
    sampling = settings.sampling
    name = "_".join(
        [
            re.sub(r"[^\w.]+", "-", "-".join(Path(settings.model_path).parts[-2:])),
            settings.quantize or settings.dtype,
            f"T{sampling.temperature:g}",
            f"cfg{sampling.cfg:g}",
            f"batch{settings.batch_size}",
        ]
    )
    text = repr(sorted(_without_method(settings, download).items()))
    return PLACE / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"


def tuned_recipe(settings: EngineSettings) -> Path | None:
    """Return the recipe of a model whose conditions are the most like those of settings."""
    here, differing = _without_method(settings), {}
    known = Known("generate_images", flags_in(RunSettings))
    for path in sorted(PLACE.glob("*.yaml")):
        there = read_recipe(str(path), known).get(TUNED, {}).get("conditions", {})
        if there.get("model_path") == here["model_path"]:
            differing[path] = sum(there.get(name) != value for name, value in here.items())
    return min(differing, key=differing.get, default=None)


def recipe_text(
    settings: EngineSettings, given: Mapping[str, Any], tuned: Mapping[str, Any]
) -> str:
    """Return the text of the file.

    settings: of a run by the method. given: the conditions of its measurements. tuned: what else is
    to be said under `tuned`.
    """
    usual = EngineSettings(model=settings.model, sampling=settings.sampling, method=settings.method)
    flags = (flags_in(EngineSettings) | method_flags()).keys() - set(_ELSEWHERE)
    content: Values = {}
    for name, value in settings_dict(settings).items():
        if name not in flags or value is None:
            continue
        if name.endswith("_path"):  # files at their default places are left out
            if value == getattr(usual, name):
                continue
            value = str(Path(value).absolute()) if Path(value).exists() else value
        content[name] = value
    how = {"method": settings.method.method, "revision": revision() or "unknown"}
    content[TUNED] = {**how, "conditions": _texts(given), **tuned}
    return _FIRST + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def warn_of_conditions(values: Values, settings: EngineSettings) -> None:
    """Say what differs if a method was tuned under other conditions than it is used in.

    values: of the settings, by flag; of a recipe that `tune` wrote they say how it was tuned.
    """
    tuned = values.get(TUNED)
    if tuned is None or tuned["method"] != settings.method.method:
        return
    from runs.conditions import conditions  # imports torch, which most commands need later

    here, there = _texts(conditions(settings)), tuned["conditions"]
    both = here.keys() & there.keys()
    here, there = ({name: texts[name] for name in both} for texts in (here, there))
    if apart := differences(there, here):
        remark(
            f"--method {settings.method.method}: tuned under other conditions "
            f"({first_of(apart)}); `python main.py tune` finds the fastest method under these"
        )


def _without_method(settings: EngineSettings, download: bool = True) -> dict[str, str]:
    """Return the conditions that all methods share."""
    from runs.conditions import conditions

    given = _texts(conditions(settings, download))
    return {name: text for name, text in given.items() if name not in method_flags()}


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return conditions as texts, since a recipe's values are read as texts."""
    return {name: "none" if value is None else str(value) for name, value in given.items()}
