"""The commands: which settings each one consists of, and so which flags it has."""

from dataclasses import Field, dataclass

from configs.benchmark import BenchmarkSettings, MethodsFlags, TuneSettings
from configs.evaluation import EvaluateSettings
from configs.extraction import ExtractionSettings
from configs.fields import Settings, flags_in, setting, settings_fields
from configs.methods import MethodSettings
from configs.rules import rule_settings
from configs.schema import RunSettings
from configs.tools import DistanceSettings, InspectSettings, PageSettings
from configs.training import TrainSettings


@dataclass(frozen=True)
class RecipeFlags(Settings, group="Recipe"):
    """Recipes, and methods and rules from outside the checkout."""

    config: str | None = setting(
        "YAML files of `flag: value` lines, by commas; a later one and the command line win",
        shown="none",
    )
    plugin: str | None = setting(
        "Python module, package.module, that registers your method or acceptance rule", shown="none"
    )
    dry_run: bool = setting(
        "check settings, files, prompts, disk and what is done already; print what would be done, "
        "with memory and images, and stop before anything is loaded",
        False,
    )


@dataclass(frozen=True)
class Command:
    """A command: its help and the settings that its flags come from."""

    summary: str  # its line of help
    settings: tuple[type[Settings], ...]  # the classes that its flags are declared in
    without: tuple[str, ...] = ()  # flags of these that it does not have


_ONLY_RUNS = ("overwrite", "trace")
COMMANDS: dict[str, Command] = {
    "generate_images": Command(
        "generate images from prompts; run it again to resume", (RunSettings, RecipeFlags)
    ),
    "benchmark": Command(
        "compare methods on the same prompts and seeds; prints a table, then one line of JSON",
        (MethodsFlags, BenchmarkSettings, RecipeFlags),
        without=_ONLY_RUNS,
    ),
    "tune": Command(
        "find the fastest lossless method for your model on your machine; writes a recipe",
        (TuneSettings, RecipeFlags),
        without=(*_ONLY_RUNS, "output_dir", *flags_in(MethodSettings)),
    ),
    "evaluate": Command(
        "write tables, image metrics and a report from run folders",
        (EvaluateSettings, RecipeFlags),
    ),
    "extract_tokens": Command(
        "turn captioned or generated images into training data for drafters",
        (ExtractionSettings, RecipeFlags),
        without=(
            "samples_per_prompt",
            "sample",
            "sample_seed",
            "slice",
            "overwrite",
            "trace",
            "vq_device",
            "dry_run",
            *(flag for owner in rule_settings() for flag in settings_fields(owner)),
        ),
    ),
    "inspect": Command(
        "check a checkpoint's files and estimate memory; with --run, check the loaded model",
        (InspectSettings, RecipeFlags),
        without=("cfg_mode", "plugin", "dry_run"),
    ),
    "vq_distances": Command(
        "write the table of nearest codes for relaxed acceptance", (DistanceSettings,)
    ),
    "demo": Command(
        "serve a page that compares plain decoding with a fast method, and the OpenAI image API",
        (PageSettings, RecipeFlags),
        without=("dry_run",),
    ),
    "train_drafter": Command(
        "train a drafter for a target; run it again to resume", (TrainSettings, RecipeFlags)
    ),
}


def flags_of(command: str) -> dict[str, Field]:
    """Return the settings of a command by flag."""
    flags: dict[str, Field] = {}
    for owner in COMMANDS[command].settings:
        flags = flags_in(owner) | flags
    return {name: f for name, f in flags.items() if name not in COMMANDS[command].without}
