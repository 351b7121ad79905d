"""Say what a table of the paper needs, before its hours begin: prompts, files, memory, metrics.

`python -m scripts.tools.paper_needs --flags="--config configs/anole.yaml --prompt MSCOCO2017Val"`
"""

import shlex
from collections.abc import Iterator

from configs.command_line import read, read_recipe, read_words
from configs.evaluation import TINY_METRICS, EvaluateSettings
from configs.fields import SettingsError, Values, build
from configs.method_table import METHODS
from configs.methods import MethodSettings
from configs.schema import RunSettings
from configs.targets import ROOT, TARGETS
from configs.tools import InspectSettings
from eval.metrics.base import Unavailable
from eval.metrics.registry import NEED_REFERENCE
from eval.metrics.weights import find_weights
from runs.commands import evaluate_settings
from runs.findings import as_table
from runs.inspection import examine
from runs.prompts import prompt_items
from support.border import Failure
from support.script import run_script

# The flags of each metric's weights.
WEIGHTS = {
    **dict.fromkeys(TINY_METRICS, ("attributes_path",)),
    "fid": ("inception_path",),
    "is": ("inception_path",),
    "pr": ("vgg_path",),
    "clip": ("clip_path",),
    "aesthetic": ("aesthetic_clip_path", "aesthetic_path"),
    "hpsv2": ("hpsv2_path",),
    "hpsv21": ("hpsv21_path",),
}


def paper_needs(*, flags: str, methods: str = "ar eagle2 adt", evaluate: str = "") -> None:
    """Print what is here and what is missing; fail if the table cannot be drawn.

    Args:
        flags: those of the table's commands, as generate_images takes them.
        methods: the table's rows, with blanks between: methods, or recipes of configs/paper.
        evaluate: flags for `evaluate`; a metric without its weights is a note.

    Raises:
        SettingsError: a flag or the prompts cannot be used.
        Failure: a file of the model or its drafter is missing or damaged.
    """
    values = flag_values(flags)
    print(f"prompts: {values['prompt']}, {count_prompts(values)} of them\n")
    drafted = [name for name in methods.split() if METHODS[method_of(name)].drafted]
    settings = build(InspectSettings, values if drafted else _without_drafter(values))
    report = examine(settings)
    print(as_table(report, settings), "\n")
    for line in _columns(settings.model, evaluate):
        print(f"image quality: {line}")
    faults = [f"{found.part} ({found.item})" for found in report.findings if not found.fits]
    if drafted and settings.drafter_path is None:
        faults.append(f"no drafter for {', '.join(drafted)}: {_drafter_source(settings.model)}")
    if faults:
        raise Failure(f"files are missing or damaged, see above: {'; '.join(faults)}")


def flag_values(flags: str) -> Values:
    """Return the values by flag that generate_images would read from these words."""
    recipe, given = read("generate_images", read_words("generate_images", shlex.split(flags)))
    return recipe | given


def count_prompts(values: Values) -> int:
    """Return how many images each row of the table has; a SettingsError for unusable prompts."""
    plain = _without_drafter(values)
    return len(prompt_items(build(RunSettings, plain, method=MethodSettings("ar"))))


def method_of(name: str) -> str:
    """Return the method of a row: of the paper's recipe with this name, or of its own name."""
    recipe = ROOT / "configs/paper" / f"{name}.yaml"
    method = read_recipe(str(recipe), "generate_images")["method"] if recipe.is_file() else name
    if method not in METHODS:
        recipes = sorted(path.stem for path in recipe.parent.glob("*.yaml"))
        allowed = ", ".join(dict.fromkeys((*recipes, *METHODS)))
        raise SettingsError(f"METHODS: found {name!r}; allowed: {allowed}, with blanks between")
    return method


def _without_drafter(values: Values) -> Values:
    return {name: value for name, value in values.items() if name != "drafter_path"}


def _drafter_source(model: str) -> str:
    source = TARGETS[model].sources["drafter_path"]
    return f'{source}; DRAFTER=folder names it, METHODS="ar jacobi" needs none'


def _columns(model: str, evaluate: str) -> Iterator[str]:
    """Yield a line per metric that the table will lack, then those that it will have."""
    words = ["--output_dir=table", *shlex.split(evaluate)]
    settings = evaluate_settings(read_words("evaluate", words))
    found: list[str] = []
    for name in settings.chosen_metrics("tiny" if model == "tiny" else "other"):
        if lacks := _lacks(name, settings, model):
            yield f"{name} left out: {lacks}"
        else:
            found.append(name)
    yield f"computed: {', '.join(found) or 'none'}"


def _lacks(metric: str, settings: EvaluateSettings, model: str) -> str | None:
    """Return what a metric cannot be computed without; None if it can be."""
    if metric in NEED_REFERENCE and settings.ref_dir is None and model != "tiny":
        return 'it needs real images; EVALUATE="--ref_dir FOLDER" names them'
    try:
        for flag in WEIGHTS[metric]:
            find_weights(flag, getattr(settings, flag))
    except Unavailable as error:
        return str(error)
    return None


if __name__ == "__main__":
    run_script(paper_needs)
