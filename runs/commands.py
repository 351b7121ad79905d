"""From the texts of a command line, and of recipes, to the settings of each command."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from configs.benchmark import CANDIDATES, BenchmarkSettings, TuneSettings, entries_of, read_sweep
from configs.command_line import (
    listed_method,
    method_flags,
    overridden,
    read,
    recipe_of,
    run_values_of,
    with_method,
)
from configs.evaluation import EvaluateSettings
from configs.extraction import OF_SAMPLES, OWN_CAPTIONS, ExtractionSettings
from configs.fields import Values, build, missing, refuse
from configs.methods import MethodSettings, applicable
from configs.model import EngineSettings
from configs.schema import RunSettings
from configs.targets import model_defaults
from configs.tools import DistanceSettings, InspectSettings, PageSettings
from configs.training import TrainSettings
from models.files.folders import check_files, check_folder, lacks_drafter
from runs.prompts import prompt_items
from runs.tuned import tell_foreign_numbers, warn_of_conditions
from support.output import remark

E = TypeVar("E", bound=EngineSettings)
UNDRAFTED = "jacobi"  # the method of a checkpoint without a drafter
_DEFAULT_METHODS = "ar,eagle2:proposal=topk,eagle2,adt:proposal=topk,adt"


def run_settings(texts: Mapping[str, str]) -> RunSettings:
    """Return the settings of `generate_images`; a SettingsError also for missing folders."""
    recipe, given = read("generate_images", texts)
    return engine_settings(decodable(recipe, given), given, RunSettings)


def decodable(recipe: Values, given: Values, say: Callable[[str], None] = remark) -> Values:
    """Return a recipe's values with a method that needs no drafter, said aloud, if there is none.

    A method or a drafter that is named, and flags that only a drafted method has, leave the default
    method.
    """
    values = recipe | given
    drafted = method_flags().keys() - applicable({"method": UNDRAFTED})
    if not values.keys().isdisjoint({"method", "drafter_path", *drafted}):
        return recipe
    path = build(EngineSettings, values, method=MethodSettings("ar")).model_path
    if not lacks_drafter(path):
        return recipe
    say(
        f"--method {UNDRAFTED}: chosen, which needs no drafter, because none comes with "
        f"--model_path {path}; --drafter_path names one, --method another method"
    )
    return recipe | {"method": UNDRAFTED}


def benchmark_settings(texts: Mapping[str, str]) -> BenchmarkSettings:
    """Return the settings of `benchmark`; method flags go to all methods that have them."""
    recipe, given = read("benchmark", texts)
    values = recipe | given
    sweep = None
    if "sweep" in values:
        if name := next((name for name in ("method", "methods") if name in given), None):
            refuse(name, given[name], "only without --sweep")
        sweep = read_sweep(values["sweep"], values.get("cells"))
    elif "cells" in values:
        refuse("cells", values["cells"], "only with --sweep")
    listed = _method_list(given) or _method_list(recipe) or _DEFAULT_METHODS
    entries = entries_of(listed) if sweep is None else sweep.entries
    source = "--methods" if sweep is None else sweep.where
    shared = {name: values[name] for name in method_flags() if name in values and name != "method"}
    methods = tuple(listed_method(entry, shared, source) for entry in entries)
    values = run_values_of(entries, values.get("model")) | values  # --config and flags win
    for name in shared:
        if name in given and not any(name in applicable(vars(method)) for method in methods):
            allowed = f"only for a method that has it; {source} has {', '.join(entries)}"
            refuse(name, given[name], allowed)
    # A drafted one, if any: only its settings keep the drafter's path, which is then checked.
    drafted = next((method for method in methods if method.drafted), methods[0])
    run = _checked(RunSettings, values, given, drafted)
    tell_foreign_numbers(run.model_path, *methods)
    for entry, method in zip(entries, methods, strict=True):
        warn_of_conditions(recipe_of(entry) or values, run.with_method(method))
    prompt_items(run)  # reports a bad prompt file before the slow imports
    varied = next((name for name in sweep.axes if name in given), None) if sweep else None
    if varied is not None:
        refuse(varied, given[varied], f"only without {sweep.where}, which varies it")
    usual = None if sweep is None else f"outputs/sweeps/{Path(sweep.path).stem}"
    output = run.output_dir if "output_dir" in values else usual
    parts = {"run": run, "methods": methods, "output": output, "sweep": sweep}
    return build(BenchmarkSettings, values, **parts)


def tune_settings(texts: Mapping[str, str]) -> TuneSettings:
    """Return the settings of `tune`; a SettingsError also for a method that is not exact."""
    recipe, given = read("tune", texts)
    values = {"prompt": TuneSettings.prompt} | recipe | given
    listed = values.get("methods")
    entries = CANDIDATES if listed is None else entries_of(listed)
    # Equal methods are tried once; errors show the entry as it was typed.
    methods = {listed_method(entry, {}): entry for entry in entries}
    if listed is None and not _has_drafter(values):
        methods = {method: entry for method, entry in methods.items() if not method.drafted}
    drafted = (method for method in methods if method.drafted)
    run = _checked(RunSettings, values, given, next(drafted, next(iter(methods))))
    for method, entry in methods.items():
        if not method.same_tokens(run.sampling.temperature):
            refuse("methods", entry, "methods that generate the images of ar: --verifier exact")
    tried = tuple(method for method in methods if method.speculative)
    if not tried:
        refuse("methods", listed, "at least one method other than ar")
    prompt_items(run)  # as above
    return build(TuneSettings, values, run=run, tried=tried)


def evaluate_settings(texts: Mapping[str, str]) -> EvaluateSettings:
    """Return the settings of `evaluate`; a SettingsError also for a missing --ref_dir."""
    settings = build(EvaluateSettings, _values("evaluate", texts))
    if settings.ref_dir is not None and not Path(settings.ref_dir).is_dir():
        refuse("ref_dir", settings.ref_dir, "a folder of images")
    return settings


def extraction_settings(texts: Mapping[str, str]) -> ExtractionSettings:
    """Return the settings of `extract_tokens`; a SettingsError also for missing folders."""
    recipe, given = read("extract_tokens", texts)
    asked = recipe | given
    sampled = asked.get("from_prompts", False)
    if sampled == ("data_dir" in asked):
        if sampled:
            refuse("data_dir", asked["data_dir"], "only without --from_prompts")
        raise missing("--data_dir", "images with captions, or --from_prompts instead")
    if not sampled:
        if name := next((name for name in given if name in OF_SAMPLES), None):
            refuse(name, given[name], "only with --from_prompts")
        recipe = {name: value for name, value in recipe.items() if name not in OF_SAMPLES}
        recipe |= model_defaults(asked.get("model", "tiny"))
    # All prompts (-1), because --num_images of this command counts samples, not prompts.
    drawn = given | {"prompt": asked.get("prompt", OWN_CAPTIONS), "num_images": -1}
    values, method = with_method({"method": "jacobi"} | recipe, drawn)
    run = _checked(RunSettings, values, given, method)
    if sampled:
        tell_foreign_numbers(run.model_path, method)
        warn_of_conditions(values, run)
    return build(ExtractionSettings, asked, run=run)


def inspect_settings(texts: Mapping[str, str]) -> InspectSettings:
    """Return the settings of `inspect`; what is missing is a row of its report."""
    return build(InspectSettings, _values("inspect", texts))


def distance_settings(texts: Mapping[str, str]) -> DistanceSettings:
    """Return the settings of `vq_distances`, whose table goes into --model_path: no hub id."""
    settings = build(DistanceSettings, _values("vq_distances", texts))
    if not Path(settings.model_path).is_dir():
        refuse("model_path", settings.model_path, "a folder, which will hold vq_distances")
    check_folder("tokenizer_path", settings.tokenizer_path, settings.model)
    return settings


def page_settings(texts: Mapping[str, str]) -> PageSettings:
    """Return the settings of `demo`; a SettingsError also for missing folders.

    Without --method the page begins with adt, or with jacobi where no drafter is.
    """
    values = _values("demo", texts)
    drafted = _has_drafter(values)
    usual = {"method": "adt" if drafted else "jacobi", "batch_size": PageSettings.batch_size}
    values = usual | values
    engine = engine_settings({}, values)
    return build(PageSettings, values, engine=engine, drafted=drafted, given=values)


def _has_drafter(values: Values) -> bool:
    """Return whether values by flag name a drafter, or the model's folder holds one."""
    if "drafter_path" in values:
        return True
    plain = build(EngineSettings, values, method=MethodSettings("ar"))
    return (Path(plain.model_path) / "drafter").is_dir()


def train_settings(texts: Mapping[str, str]) -> TrainSettings:
    """Return the settings of `train_drafter`; a SettingsError also for missing folders."""
    values = _values("train_drafter", texts)
    usual = "block" if values.get("drafter") == "block" else TrainSettings.eval_method
    values = {"eval_method": usual} | values
    method = listed_method(values["eval_method"], {}, "--eval_method")
    settings = build(TrainSettings, values, evaluated=method)
    for folder in settings.token_folders:
        if not (Path(folder) / "about.json").is_file():
            refuse("tokens", folder, "a folder with about.json, which extract_tokens wrote")
    check_files(settings.plain)
    check_folder("start_from", settings.start_from, settings.model)
    return settings


def engine_settings(recipe: Values, given: Values, owner: type[E] = EngineSettings) -> E:
    """Return the settings of a model that draws any prompt; a SettingsError for missing folders.

    recipe, given: values by flag, of a recipe and of the caller, whose values win. owner: of the
    settings, which may be more.
    """
    values, method = with_method(recipe, given)
    settings = _checked(owner, values, given, method)
    tell_foreign_numbers(settings.model_path, method)
    warn_of_conditions(values, settings)
    return settings


def _values(command: str, texts: Mapping[str, str]) -> Values:
    """Return what the recipes and the command line say; the command line wins."""
    return overridden(*read(command, texts))


def _checked(owner: type[E], values: Values, given: Values, method: MethodSettings) -> E:
    """Return the settings of a method on a model, without a recipe's drafter if it has none."""
    if not method.drafted and "drafter_path" not in given:
        values = {name: value for name, value in values.items() if name != "drafter_path"}
    settings = build(owner, values, method=method)
    check_files(settings)
    return settings


def _method_list(values: Values) -> str | None:
    """Return --methods, or the list that --method stands for: plain decoding and that method."""
    if "methods" in values and "method" in values:
        refuse("method", values["method"], "only without --methods")
    if values.get("method", "ar") != "ar":
        return f"ar,{values['method']}"
    return values.get("methods", values.get("method"))
