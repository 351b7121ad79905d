"""The recipe that `tune` writes: the fastest method, and all settings under which it is that.

Under `tuned` are date, revision, the conditions under which the method won, the fastest method of
every batch size, and the table of all methods.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from configs.fields import SettingsError, Values, flags_in, refuse, settings_dict
from configs.methods import AUTO, MethodSettings, applicable
from configs.model import EngineSettings
from configs.recipes import (
    TUNED,
    composed,
    method_flags,
    of_runs,
    read_recipe,
    tuned_method,
    without,
)
from configs.targets import model_place
from models.files.folders import LOCAL, comes_without_drafter
from support.durable import files_named
from support.output import remark
from support.progress import plural
from support.provenance import revision
from support.scope import during
from support.wording import differences, first_of

UNDRAFTED = "jacobi"  # the method of a checkpoint without a drafter
PLACE = Path("outputs/tuned")  # of recipes whose file is not named
_OURS = r".+_[0-9a-f]{8}\.yaml"  # names there: `tuned_place`; copies have others
_ELSEWHERE = ("device", "vq_device")  # settings that a recipe leaves to the machine
_NONE = "none"  # what a recipe says of a setting without a value
_FIRST = "# The fastest lossless method of a model on a machine; `python main.py tune` wrote it.\n"


def tuned_place(settings: EngineSettings) -> Path:
    """Return the recipe of a model under some conditions, whatever the method and the batch size.

    A SettingsError if the snapshot of a hub id cannot be had.
    """
    sampling = settings.sampling
    name = "_".join(
        [
            re.sub(r"[^\w.]+", "-", "-".join(Path(settings.model_path).parts[-2:])),
            settings.quantize or settings.dtype,
            f"T{sampling.temperature:g}",
            f"cfg{sampling.cfg:g}",
        ]
    )
    text = repr(sorted(_shared(_conditions(settings)).items()))
    return PLACE / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"


@dataclass(frozen=True)
class Tuned:
    """A recipe that `tune` wrote, and what it says for a run."""

    path: Path
    method: Values  # the flags of the fastest method
    images: int  # at once, that it is the fastest for
    busiest: int  # images at once that make most an hour; 1 if the run says how many
    apart: list[str]  # what differs from the conditions of the run

    @property
    def why(self) -> str:
        """Why its method is taken; for a run of many images, the batch size that makes more."""
        words = f"what `tune` chose for {plural(self.images, 'image')} at once, by {self.path}"
        more = f"; --batch_size {self.busiest} makes more images an hour"
        return words + (more if self.busiest > 1 else "")


def tuned_recipe(values: Values) -> Tuned | None:
    """Return the recipe of a model whose conditions are the most like those of a run.

    None if `tune` has written none for the model. values: of the run, by flag, without a method.
    """
    recipes: list[Tuned] = []
    for path in files_named(PLACE, _OURS):
        try:
            recipe = read_recipe(str(path), of_runs())
            if (tuned := recipe.get(TUNED)) is None:
                continue
            images, flags = tuned_method(tuned, values.get("batch_size", 1))
            busiest = 1 if "batch_size" in values else recipe.get("batch_size", 1)
            method = MethodSettings.of(flags)
        except SettingsError as error:  # damaged, or of a plugin's method
            remark(f"{path} is not used: {error}")
            continue
        if "drafter_path" in values and not method.drafted:
            continue
        settings = EngineSettings.of(composed(values, {}, method), method=method)
        # a hub id without its files here was not tuned here
        with during(LOCAL, True), suppress(SettingsError):
            here = _conditions(settings)
            if tuned["conditions"].get("model_path") == here["model_path"]:
                apart = conditions_apart(tuned, settings)
                recipes.append(Tuned(path, flags, images, busiest, apart))
    return min(recipes, key=lambda one: len(one.apart), default=None)


def with_usual_method(
    recipe: Values, given: Values, say: Callable[[str], None] = remark
) -> tuple[Values, Values]:
    """Return the values of a recipe and of what wins over it, with a method where none is named.

    That is what `tune` found for the model under the same conditions; or else the default, of a
    model without a drafter one that needs none. `say` gets what is chosen and why.

    Raises:
        SettingsError: the method is auto, and `tune` has not been run under these conditions.
    """
    values = recipe | given
    asked = values.get("method") == AUTO
    if asked or method_flags().keys().isdisjoint(values):
        recipe, given = without(recipe, method_flags()), without(given, ["method"])
        tuned = tuned_recipe(recipe | given)
        if tuned is not None and not tuned.apart:
            say(f"--method {tuned.method['method']}: {tuned.why}; --method NAME takes another")
            return recipe | tuned.method, given
        if asked:
            refuse("method", AUTO, *_advice(tuned))
        if tuned is not None:
            say(f"{tuned.path} is not used: conditions differ ({first_of(tuned.apart)})")
    drafted = method_flags().keys() - applicable({"method": UNDRAFTED})
    if not values.keys().isdisjoint({"method", *drafted}) or not lacks_drafter(values):
        return recipe, given
    path = model_place(values.get("model", "tiny"), values.get("model_path"))
    say(
        f"--method {UNDRAFTED}: chosen, which needs no drafter, because none comes with "
        f"--model_path {path}; --drafter_path names one, --method another method"
    )
    return recipe | {"method": UNDRAFTED}, given


def _advice(found: Tuned | None) -> tuple[str, str]:
    """Return when --method auto works, and why it does not."""
    why = "`python main.py tune` finds the fastest method and writes it there."
    if found is not None:
        why = f"{found.path} is for other conditions ({first_of(found.apart)}). {why}"
    return f"only with a recipe of `tune` for this model, machine and settings in {PLACE}", why


def lacks_drafter(values: Values) -> bool:
    """Return whether no drafter is named and none comes with the model, which is there."""
    place = model_place(values.get("model", "tiny"), values.get("model_path"))
    return "drafter_path" not in values and comes_without_drafter(place)


def recipe_text(
    settings: EngineSettings,
    method: MethodSettings,
    given: Mapping[str, Any],
    tuned: Mapping[str, Any],
) -> str:
    """Return the text of the file.

    settings: of a run; they name the drafter if a method needs it. method: the fastest. given: the
    conditions of the measurements. tuned: what else is to be said under `tuned`.
    """
    usual = EngineSettings(model=settings.model, sampling=settings.sampling, method=settings.method)
    flags = (flags_in(EngineSettings) | method_flags()).keys() - set(_ELSEWHERE)
    values = without(settings_dict(settings), method_flags()) | settings_dict(method)
    content: Values = {}
    for name, value in values.items():
        if name not in flags or value is None:
            continue
        if name.endswith("_path"):  # files at their default places are left out
            if value == getattr(usual, name):
                continue
            value = str(Path(value).absolute()) if Path(value).exists() else value
        content[name] = value
    how = {"revision": revision() or "unknown", "conditions": _shared(_texts(given))}
    content[TUNED] = {**how, **tuned}
    return _FIRST + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def conditions_apart(tuned: Mapping[str, Any], settings: EngineSettings) -> list[str]:
    """Return what differs between the conditions that a method was tuned under and is used in.

    tuned: the part of the recipe that says how it was tuned.
    """
    here, there = _shared(_conditions(settings)), tuned["conditions"]
    if not settings.method.drafted or there.get("drafter_path") == _NONE:
        here.pop("drafter_path", None)
    then, now = (
        {name: texts[name] for name in here.keys() & there.keys()} for texts in (there, here)
    )
    return differences(then, now)


def warn_of_conditions(values: Values, settings: EngineSettings) -> None:
    """Say what differs if a method was tuned under other conditions than it is used in.

    values: of the settings, by flag; of a recipe that `tune` wrote they say how it was tuned.
    """
    if (tuned := values.get(TUNED)) is None:
        return
    images, flags = tuned_method(tuned, settings.batch_size)
    if flags["method"] != settings.method.method:
        return
    apart = conditions_apart(tuned, settings)
    if images != settings.batch_size:
        apart.append(f"--batch_size: {images} there, {settings.batch_size} now")
    if apart:
        remark(
            f"--method {settings.method.method}: tuned under other conditions "
            f"({first_of(apart)}); `python main.py tune` finds the fastest method under these"
        )


def _conditions(settings: EngineSettings) -> dict[str, str]:
    """Return conditions as texts, since a recipe's values are read as texts."""
    from runs.conditions import conditions  # imports torch, which most commands need later

    return _texts(conditions(settings))


def _shared(given: Mapping[str, str]) -> dict[str, str]:
    """Return the conditions that methods and batch sizes have in common."""
    apart = {*method_flags(), "batch_size"}
    return {name: text for name, text in given.items() if name not in apart}


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: _NONE if value is None else str(value) for name, value in given.items()}
