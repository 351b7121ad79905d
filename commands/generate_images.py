"""`generate_images`: prompts in; images, records and a trace out."""

from pathlib import Path

from commands import Command
from configs.fields import Values
from configs.methods import AUTO
from configs.recipes import TUNED, RecipeFlags, composed
from configs.schema import PromptSettings, RunSettings
from runs.opening import look_at, tell
from runs.prompts import prompt_items
from runs.records import MANIFEST, read_manifest
from runs.tuned import with_usual_method
from support.output import remark


def run_settings(recipe: Values, given: Values) -> RunSettings:
    """Return the settings of the command; a SettingsError also for missing folders."""
    if (recipe | given).get("method", AUTO) == AUTO:
        recipe, given = with_usual_method(recipe, given)
    if TUNED in recipe and "batch_size" not in given:
        given |= {"batch_size": _images_at_once(recipe | given)}
    values = composed(recipe, given) if recipe else given
    settings = RunSettings.of(values)
    look_at(settings.engine)
    tell(values, settings.engine)
    return settings


def _images_at_once(values: Values) -> int:
    """Return the batch size of a recipe of `tune`; its method depends on it.

    A few images would fill no batch. A run goes on with the batch size that it was begun with.
    """
    images = len(prompt_items(PromptSettings.of(values)))
    usual = min(images, values.get("batch_size", 1))
    folder = values.get("output_dir")
    if folder is None or values.get("overwrite") or not Path(folder, MANIFEST).is_file():
        return usual
    begun = read_manifest(Path(folder))["settings"].get("batch_size", usual)
    if begun != usual:
        remark(f"--batch_size {begun}: as the run in {folder}; a new folder would have {usual}")
    return begun


COMMAND = Command(
    "generate_images",
    "generate images from prompts; run it again to resume",
    (RunSettings, RecipeFlags),
    run_settings,
    "runs.generate:generate_images",
    "runs.generate:plan_images",
    resumes=True,
)
