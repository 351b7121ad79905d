"""`inspect`: what a checkpoint's files hold, how much memory it takes, whether it works."""

from collections.abc import Mapping

from commands import Command
from configs.fields import flags_in
from configs.methods import MethodSettings
from configs.recipes import RecipeFlags
from configs.tools import InspectSettings
from runs.opening import check_device


def inspect_settings(texts: Mapping[str, str]) -> InspectSettings:
    """Return the settings of the command; what is missing is a row of its report."""
    settings = InspectSettings.of(COMMAND.values(texts))
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
