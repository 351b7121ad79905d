"""From values by flag to the settings of a model whose files are there."""

from collections.abc import Callable, Container
from pathlib import Path

from configs.fields import Values, flags_in
from configs.methods import METHODS, MethodSettings
from configs.model import EngineSettings
from configs.recipes import OF_FAMILY, TUNED, composed
from configs.targets import ROOT, TARGETS
from models.files.folders import check_files
from runs.tuned import warn_of_conditions
from support.output import remark


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
        if name in OF_FAMILY and name not in given and value != flags[name].default
    ]
    if told:
        say(f"{', '.join(told)}: as configs/{model}.yaml says")


def check_device(device: str) -> None:
    """Refuse a GPU that is not there before the slow imports."""
    if device.startswith("cuda"):
        from support.devices import pick_device

        pick_device(device)


def tell(values: Values, settings: EngineSettings) -> None:
    """Say what is tuned for another model, or under other conditions; values: of the settings."""
    tell_foreign_numbers(settings.model_path, settings.method)
    if TUNED in values:
        warn_of_conditions(values, settings)


def tell_foreign_numbers(model_path: str, *methods: MethodSettings) -> None:
    """Say that methods weigh what they recall by numbers that were fitted to another model."""
    recalls = {
        method.method
        for method in methods
        if not method.recall_numbers and "recall_numbers" in METHODS[method.method].defaults
    }
    if recalls and Path(model_path).resolve() != (ROOT / TARGETS["tiny"].folder).resolve():
        fits = "; `tune` fits them to yours" if "recall" in recalls else ""
        remark(f"recall numbers: fitted to tiny{fits}")
