"""From values by flag to the settings of a model whose files are there."""

from collections.abc import Callable, Container
from pathlib import Path

from configs.fields import Values, flags_in, refuse
from configs.methods import AUTO, MethodSettings, applicable
from configs.model import EngineSettings
from configs.recipes import composed, method_flags, without
from configs.targets import ROOT, TARGETS, model_place
from models.files.folders import check_files, comes_without_drafter
from runs.tuned import PLACE, Tuned, tuned_recipe, warn_of_conditions
from support.output import remark
from support.wording import first_of

UNDRAFTED = "jacobi"  # the method of a checkpoint without a drafter


def engine_settings(recipe: Values, given: Values) -> EngineSettings:
    """Return the settings of a model that makes images of any prompt.

    recipe, given: values by flag, of a recipe and of the caller, whose values win.

    Raises:
        SettingsError: a setting cannot be used, or a folder or file is missing.
    """
    values = composed(recipe, given)
    settings = EngineSettings.of(values)
    look_at(settings)
    tell(values, settings)
    return settings


def look_at(settings: EngineSettings) -> None:
    """Refuse missing files and GPUs before the slow imports."""
    check_files(settings)
    check_device(settings.device)


def tell_family(
    model: str, recipe: Values, given: Container[str], say: Callable[[str], None] = remark
) -> None:
    """Say what a model's own recipe sets that the caller does not. given: the caller's flags."""
    flags = flags_in(EngineSettings)
    told = [
        f"--{name} {value}"
        for name, value in recipe.items()
        if name not in given and value != flags[name].default
    ]
    if told:
        say(f"{', '.join(told)}: as configs/{model}.yaml says")


def check_device(device: str) -> None:
    """Refuse a GPU that is not there before the slow imports."""
    if device.startswith("cuda"):
        from support.devices import pick_device

        pick_device(device)


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


def tell(values: Values, settings: EngineSettings) -> None:
    """Say what is tuned for another model, or under other conditions; values: of the settings."""
    tell_foreign_numbers(settings.model_path, settings.method)
    warn_of_conditions(values, settings)


def tell_foreign_numbers(model_path: str, *methods: MethodSettings) -> None:
    """Say that methods weigh what they recall by numbers that were fitted to another model."""
    is_tiny = Path(model_path).resolve() == (ROOT / TARGETS["tiny"].folder).resolve()
    recalls = {
        method.method
        for method in methods
        if not method.recall_numbers and "recall_numbers" in applicable(vars(method))
    }
    if not is_tiny and recalls:
        fits = "; `tune` fits them to yours" if "recall" in recalls else ""
        remark(f"recall numbers: fitted to tiny{fits}")
