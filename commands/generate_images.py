"""`generate_images`: prompts in; images, records and a trace out."""

from collections.abc import Mapping

from commands import Command
from configs.recipes import RecipeFlags, composed
from configs.schema import RunSettings
from runs.opening import look_at, tell, with_usual_method


def run_settings(texts: Mapping[str, str]) -> RunSettings:
    """Return the settings of the command; a SettingsError also for missing folders."""
    recipe, given = COMMAND.read(texts)
    values = composed(with_usual_method(recipe, given), given)
    settings = RunSettings.of(values)
    look_at(settings.engine)
    tell(values, settings.engine)
    return settings


COMMAND = Command(
    "generate_images",
    "generate images from prompts; run it again to resume",
    (RunSettings, RecipeFlags),
    run_settings,
    "runs.generate:generate_images",
    "runs.generate:plan_images",
    resumes=True,
)
