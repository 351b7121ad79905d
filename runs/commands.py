"""From the texts of a command line, and of recipes, to the settings of each command."""

from collections.abc import Mapping
from pathlib import Path

from configs.benchmarking import BenchmarkSettings
from configs.evaluation import EvaluateSettings
from configs.extraction import OF_SAMPLES, OWN_CAPTIONS, ExtractionSettings
from configs.fields import SettingsError, refuse, settings_fields
from configs.given import Values, read, typed
from configs.method_flags import METHOD_FLAGS, applicable, listed_method, with_method
from configs.methods import MethodSettings, SamplingSettings
from configs.schema import CLASSIFIER, RunSettings
from configs.sweep import Sweep, read_sweep
from configs.tools import DistanceSettings, InspectSettings
from configs.training import TrainSettings
from runs.places import check_folders, check_place

_DEFAULT_METHODS = "ar,eagle2:proposal=topk,eagle2,adt:proposal=topk,adt"


def run_settings(texts: Mapping[str, str]) -> RunSettings:
    """The settings of `generate_images` from texts by flag name; a SettingsError also for missing folders."""
    return _run(*with_method(*read("generate_images", texts)))


def benchmark_settings(texts: Mapping[str, str]) -> BenchmarkSettings:
    """The settings of `benchmark`; method flags apply to all methods of the list, or of the sweep, that have them."""
    recipe, given = read("benchmark", texts)
    values = recipe | given
    sweep = _sweep(values, given)
    listed = next(
        (text for text in map(_method_list, (given, recipe)) if text is not None), _DEFAULT_METHODS
    )
    entries = [entry.strip() for entry in listed.split(",")] if sweep is None else sweep.entries
    source = "--methods" if sweep is None else sweep.where
    shared = {name: values[name] for name in METHOD_FLAGS if name in values and name != "method"}
    methods = tuple(listed_method(entry, shared, source) for entry in entries)
    for name in shared:
        if name in given and not any(name in applicable(vars(method)) for method in methods):
            refuse(
                name,
                given[name],
                f"only for a method that has it; {source} has {', '.join(entries)}",
            )
    for name in ("overwrite", "trace"):
        if values.get(name):
            refuse(name, True, "only with generate_images")
    own = {name: values[name] for name in settings_fields(BenchmarkSettings) if name in values}
    run = _run(recipe, given, next((method for method in methods if method.drafted), methods[0]))
    if sweep is not None:
        sweep.check(methods, given)
        own.setdefault(
            "quality", bool(sweep.quality) and (Path(run.model_path) / CLASSIFIER).is_file()
        )
    output = run.output_dir if "output_dir" in values else sweep and sweep.output_dir
    return BenchmarkSettings(run, methods, output=output, sweep=sweep, **own)


def _sweep(values: Values, given: Values) -> Sweep | None:
    """The sweep of --sweep, without the cells that --cells leaves out."""
    if "sweep" not in values:
        if "cells" in values:
            refuse("cells", values["cells"], "only with --sweep")
        return None
    if name := next((name for name in ("method", "methods") if name in given), None):
        refuse(name, given[name], "not together with --sweep")
    return read_sweep(values["sweep"]).part(values.get("cells"))


def evaluate_settings(texts: Mapping[str, str]) -> EvaluateSettings:
    """The settings of `evaluate`; a SettingsError for folders that are not there."""
    recipe, given = read("evaluate", texts)
    settings = EvaluateSettings(**recipe | given)
    if settings.ref_dir is not None and not Path(settings.ref_dir).is_dir():
        refuse("ref_dir", settings.ref_dir, "a folder of images")
    return settings


def extraction_settings(texts: Mapping[str, str]) -> ExtractionSettings:
    """The settings of `extract_tokens`; a SettingsError also for missing folders."""
    recipe, given = read("extract_tokens", texts)
    values = recipe | given
    own = {name: values[name] for name in settings_fields(ExtractionSettings) if name in values}
    sampled = own.get("from_prompts", False)
    if sampled == ("data_dir" in own):
        found = "found together with --from_prompts" if sampled else "missing"
        raise SettingsError(
            f"--data_dir: {found}; allowed: images with captions, or --from_prompts without it"
        )
    if not sampled:
        if name := next((name for name in given if name in OF_SAMPLES), None):
            refuse(name, given[name], "only with --from_prompts")
        recipe = {name: value for name, value in recipe.items() if name not in OF_SAMPLES}
    given |= {"prompt": own.get("prompt", OWN_CAPTIONS), "num_images": -1}
    run = _run(*with_method({"method": "jacobi"} | recipe, given))
    return ExtractionSettings(run, **own)


def inspect_settings(texts: Mapping[str, str]) -> InspectSettings:
    """The settings of `inspect`; folders and files that are missing are lines of its report."""
    return InspectSettings(**typed("inspect", texts))


def distance_settings(texts: Mapping[str, str]) -> DistanceSettings:
    """The settings of `vq_distances`; the table is written into the folder --model_path, so no hub id will do."""
    settings = DistanceSettings(**typed("vq_distances", texts))
    if not Path(settings.model_path).is_dir():
        refuse("model_path", settings.model_path, "a folder, which will hold vq_distances")
    check_place("tokenizer_path", settings.tokenizer_path, settings.model)
    return settings


def train_settings(texts: Mapping[str, str]) -> TrainSettings:
    """The settings of `train_drafter`; a SettingsError also for missing folders."""
    recipe, given = read("train_drafter", texts)
    values = recipe | given
    for name, allowed in (
        ("tokens", "a folder that extract_tokens wrote"),
        ("output_dir", "a folder"),
    ):
        if name not in values:
            raise SettingsError(f"--{name}: missing; allowed: {allowed}")
    sampling = {
        name: values.pop(name) for name in settings_fields(SamplingSettings) if name in values
    }
    method = listed_method(values.get("eval_method", "adt"), {}, "--eval_method")
    settings = TrainSettings(**values, sampling=SamplingSettings(**sampling), evaluated=method)
    for folder in settings.token_folders:
        if not (Path(folder) / "about.json").is_file():
            refuse("tokens", folder, "a folder with about.json, which extract_tokens wrote")
    check_folders(settings.run)
    check_place("start_from", settings.start_from, settings.model)
    return settings


def _method_list(values: Values) -> str | None:
    """--methods, or the list that --method stands for in a benchmark: plain decoding and that method."""
    if "methods" in values and "method" in values:
        refuse("method", values["method"], "not together with --methods")
    if values.get("method", "ar") != "ar":
        return f"ar,{values['method']}"
    return values.get("methods", values.get("method"))


def _run(recipe: Values, given: Values, method: MethodSettings) -> RunSettings:
    values = recipe | given
    if not method.drafted and "drafter_path" not in given:
        values.pop("drafter_path", None)  # a recipe's drafter is for the methods that have one
    if "prompt" not in values:
        raise SettingsError(
            "--prompt: missing; allowed: a text, a .txt file, PartiPrompts, MSCOCO2017Val"
        )
    sampling = {name: values[name] for name in settings_fields(SamplingSettings) if name in values}
    own = {name: values[name] for name in settings_fields(RunSettings) if name in values}
    settings = RunSettings(**own, sampling=SamplingSettings(**sampling), method=method)
    check_folders(settings)
    return settings
