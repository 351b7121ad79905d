"""`inspect`: what a checkpoint's files hold, how much memory it takes, whether it works."""

from commands import Command
from configs.fields import Values, flags_in
from configs.methods import MethodSettings
from configs.recipes import RecipeFlags, overridden
from configs.tools import InspectSettings
from runs.opening import check_device


def inspect_settings(recipe: Values, given: Values) -> InspectSettings:
    """Return the settings of the command; what is missing is a row of its report."""
    settings = InspectSettings.of(overridden(recipe, given))
    if settings.run:
        check_device(settings.engine.device)
    return settings


COMMAND = Command(
    "inspect",
    "check a checkpoint's files and estimate memory; with --run, check the loaded model",
    (InspectSettings, RecipeFlags),
    inspect_settings,
    "runs.check.files:inspect_checkpoint",
    without=("cfg_mode", "compile", "plugin", *flags_in(MethodSettings)),
)
