"""`evaluate`: tables, image metrics and a report from run folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands import Command
from configs.evaluation import EvaluateSettings
from configs.fields import Values, refuse
from configs.recipes import RecipeFlags, overridden
from configs.rules import loaded
from runs.opening import check_device


def evaluate_settings(recipe: Values, given: Values) -> EvaluateSettings:
    """Return the settings of the command; a SettingsError also for a missing --ref_dir."""
    settings = EvaluateSettings.of(overridden(recipe, given))
    if settings.ref_dir is not None and not Path(settings.ref_dir).is_dir():
        refuse("ref_dir", settings.ref_dir, "a folder of images")
    check_device(settings.device)
    return settings


def _on_runs(name: str) -> Callable[[EvaluateSettings], Any]:
    """Return a function that also takes the runs; folders are read before the slow imports."""

    def call(settings: EvaluateSettings) -> Any:
        runs = loaded("eval.report.run:read_runs")(settings.folders, settings.baseline)
        return loaded(name)(settings, runs)

    return call


COMMAND = Command(
    "evaluate",
    "write tables, image metrics and a report from run folders",
    (EvaluateSettings, RecipeFlags),
    evaluate_settings,
    _on_runs("eval.report.evaluate:evaluate"),
    _on_runs("eval.report.evaluate:plan_evaluation"),
)
