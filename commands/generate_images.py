"""`generate_images`: prompts in; images, records and a trace out."""

from collections.abc import Mapping

from commands import Command
from configs.recipes import TUNED, RecipeFlags, composed
from configs.schema import PromptSettings, RunSettings
from runs.opening import look_at, tell, with_usual_method
from runs.prompts import prompt_items


def run_settings(texts: Mapping[str, str]) -> RunSettings:
    """Return the settings of the command; a SettingsError also for missing folders."""
    recipe, given = with_usual_method(*COMMAND.read(texts))
    if TUNED in recipe and "batch_size" not in given:  # or a few images would fill no batch
        images = len(prompt_items(PromptSettings.of(recipe | given)))
        given |= {"batch_size": min(images, recipe.get("batch_size", 1))}
    values = composed(recipe, given)
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
