"""Say what a table of the paper needs, before its hours begin: files, memory, prompts, metrics.

`python -m scripts.paper.needs --flags="--config configs/anole.yaml --prompt MSCOCO2017Val"`
"""

import shlex
from pathlib import Path

from configs.command_line import listed_method, read, read_words
from configs.evaluation import METRICS, EvaluateSettings
from configs.fields import build, mismatch, refuse, refusing, settings_dict
from configs.methods import MethodSettings
from configs.targets import ROOT, TARGETS
from configs.tools import InspectSettings
from eval.metrics.base import Unavailable
from eval.metrics.weights import find_weights
from models.codecs.codebook import table_widths
from models.files.folders import checkpoint_folder
from models.registry import family_of
from runs.check.files import Examination
from runs.check.report import as_table
from runs.commands import evaluate_settings
from support.border import Failure
from support.devices import machine_name, pick_device
from support.durable import encode_json, replace_file
from support.provenance import versions, with_hashes
from support.script import run_script


def paper_needs(
    *, flags: str, methods: str = "ar eagle2 adt", evaluate: str = "", hashes: str | None = None
) -> None:
    """Print what is here and what is missing; fail if a file of the model or a drafter is missing.

    Prompts are not looked at: `run.sh` downloads them afterwards, and `benchmark` reads them first.

    Args:
        flags: those of the table's commands, as generate_images takes them.
        methods: the table's rows, with blanks between: methods, or recipes of configs/paper.
        evaluate: flags for `evaluate`, split at blanks; a metric without its weights is a note.
        hashes: file for what tells whether a table would be another one: the hashes of model and
            drafter, the machine, the versions of libraries.
    """
    recipe, given = read("generate_images", read_words("generate_images", shlex.split(flags)))
    values, rows = recipe | given, methods_of(methods)
    drafted = [name for name, method in rows.items() if method.drafted]
    if not drafted:
        values.pop("drafter_path", None)  # of the recipe, for rows that are not asked for
    settings = build(InspectSettings, values)
    judging = _judging(evaluate)
    metrics = judging.chosen_metrics("tiny" if settings.model == "tiny" else "other")
    if metrics and not family_of(settings.model).pictured(Path(settings.model_path)):
        raise Failure(
            f"images of {settings.model} would be tokens, which no metric can judge: the whole "
            'checkpoint paints them, EVALUATE="--metrics none" leaves the metrics out'
        )
    examination = Examination(settings)
    report = examination.report()
    print(as_table(report, settings), "\n")
    lacks = {name: _lacks(name, judging, settings.model) for name in metrics}
    for name, text in lacks.items():
        if text:
            print(f"image quality: {name} skipped: {text}")
    computed = ", ".join(name for name in metrics if not lacks[name])
    print(f"image quality: computed: {computed or 'none'}")
    faults = [finding.name for finding in report.faults]
    if drafted and settings.drafter_path is None:
        source = TARGETS[settings.model].sources["drafter_path"]
        how = f'{source}; DRAFTER=folder names it, METHODS="ar jacobi" needs none'
        faults.append(f"no drafter for {', '.join(drafted)}: {how}")
    known = any(finding.part == "nearest codes" for finding in report.findings)
    if known and (lacking := _lacking_columns(rows, examination)):
        faults.append(lacking)
    if faults:
        raise Failure(f"files are missing or damaged, see above: {'; '.join(faults)}")
    if hashes is not None:
        Path(hashes).parent.mkdir(parents=True, exist_ok=True)
        here = {"machine": machine_name(pick_device(settings.device)), "versions": versions()}
        replace_file(Path(hashes), encode_json(with_hashes(settings_dict(settings)) | here))


def _judging(words: str) -> EvaluateSettings:
    """Return what the flags for `evaluate` ask for, read as `run.sh` gives them."""
    folders = dict.fromkeys(("output_dir", "report_dir"), "table")  # only names, not opened
    with refusing("EVALUATE (values without blanks or quotes): "):
        given = read_words("evaluate", words.split())
        for name in filter(given.__contains__, folders):
            refuse(name, given[name], "only without run.sh, which names this folder")
        return evaluate_settings(given | folders)


def methods_of(names: str) -> dict[str, MethodSettings]:
    """Return the method of each row, by name: of a recipe, such as configs/paper has, or itself."""
    rows = {}
    for name in names.split():
        if ":" in name:  # generate_images has no such entries
            advice = "Write the options into a recipe.yaml and give its path."
            raise mismatch("METHODS", repr(name), "a method or a recipe without options", advice)
        recipe = ROOT / "configs" / "paper" / f"{name}.yaml"
        entry = str(recipe) if recipe.is_file() else name
        rows[name] = listed_method(entry, {}, "METHODS")
    return rows


def _lacking_columns(rows: dict[str, MethodSettings], examination: Examination) -> str | None:
    """Return which rows with LANTERN need a wider table of nearest codes than the model has."""
    settings = examination.settings
    folder = checkpoint_folder(settings.model_path, "--model_path", download=False)
    codes = examination.family.image_codes(folder, examination.options).count
    needed = {name: row.lantern.columns(codes) for name, row in rows.items() if row.lantern}
    widest = max(table_widths(folder), default=0)
    lacking = [name for name, columns in needed.items() if columns > widest]
    if not lacking:
        return None
    return (
        f"table of nearest codes for {', '.join(lacking)}: expected {max(needed.values())} columns "
        f"or more, got {widest or 'none'}; `python main.py vq_distances --model {settings.model} "
        f"--model_path {shlex.quote(settings.model_path)}` makes it"
    )


def _lacks(metric: str, settings: EvaluateSettings, model: str) -> str | None:
    """Return what a metric cannot be computed without; None if it can be."""
    entry = METRICS[metric]
    flag = entry.flag
    if entry.needs_reference and settings.ref_dir is None and model != "tiny":
        return 'it needs real images; EVALUATE="--ref_dir FOLDER" names them'
    try:
        if flag is not None:
            find_weights(flag, getattr(settings, flag))
    except Unavailable as error:
        return str(error)
    return None


if __name__ == "__main__":
    run_script(paper_needs)
