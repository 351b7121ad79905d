"""`extract_tokens`: captioned images, or the target's samples, as training data for drafters."""

from pathlib import Path

from commands import Command
from configs.extraction import OF_SAMPLES, OWN_CAPTIONS, ExtractionSettings
from configs.fields import Flag, Values, missing, refuse
from configs.recipes import RecipeFlags, composed, without
from configs.rules import RULES
from configs.schema import RunSettings
from configs.targets import unguided_targets
from runs.captioned_images import captioned_images
from runs.opening import look_at, tell


def extraction_settings(recipe: Values, given: Values) -> ExtractionSettings:
    """Return the settings of the command; a SettingsError also for missing folders."""
    asked = recipe | given
    sampled = asked.get("from_prompts", False)
    if sampled == ("data_dir" in asked):
        if sampled:
            refuse("data_dir", asked["data_dir"], "only without --from_prompts")
        raise missing(Flag("data_dir"), "images with captions, or --from_prompts instead")
    if not sampled:
        if name := next((name for name in given if name in OF_SAMPLES), None):
            refuse(name, given[name], "only with --from_prompts")
        unguided = asked.get("model") in unguided_targets()
        recipe = without(recipe, OF_SAMPLES) | ({"cfg": 1.0} if unguided else {})
    # All prompts (-1), because --num_images of this command counts samples, not prompts.
    drawn = given | {"prompt": asked.get("prompt", OWN_CAPTIONS), "num_images": -1}
    values = composed({"method": "jacobi"} | recipe, drawn)
    run = RunSettings.of(values)
    look_at(run.engine)
    if sampled:
        tell(values, run.engine)
    return ExtractionSettings.of(asked, run=run)


def run(settings: ExtractionSettings) -> None:
    """Extract; a bad folder is reported before the slow imports."""
    if settings.data_dir is not None:
        captioned_images(Path(settings.data_dir))
    from runs.extract import extract_tokens

    extract_tokens(settings)


COMMAND = Command(
    "extract_tokens",
    "turn captioned or generated images into training data for drafters",
    (ExtractionSettings, RecipeFlags),
    extraction_settings,
    run,
    without=(
        "samples_per_prompt",
        "sample",
        "sample_seed",
        "slice",
        "overwrite",
        "trace",
        "vq_device",
        *(flag for rule in RULES.values() for flag in rule.flags),
    ),
    resumes=True,
)
