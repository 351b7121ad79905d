"""From the texts of a command line, and a recipe, to settings."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.evaluation import EvaluateSettings
from configs.extraction import OF_SAMPLES, OWN_CAPTIONS, ExtractionSettings
from configs.fields import SettingsError, kind, parse_text, refuse, settings_fields
from configs.flags import OWNERS, PaperFlags, RecipeFlags, check_known, flags_of
from configs.methods import METHODS, RELAXED, AdtSettings, LanternSettings, MethodSettings, SamplingSettings
from configs.schema import BenchmarkSettings, RunSettings
from configs.sweep import Sweep, read_sweep
from configs.targets import MODELS, OWN_FLAGS, ROOT
from configs.tools import DistanceSettings, InspectSettings
from configs.training import TrainSettings
from configs.yaml_file import read_yaml
from models.files import META_FILES, NEEDED, SOURCES, T5_TOKENIZERS, WEIGHT_FILES, WEIGHT_INDEXES

Values = dict[str, Any]  # by flag name, converted
_NETWORK_FILES = (("config.json",), WEIGHT_FILES + WEIGHT_INDEXES)  # of each group one has to be there
_DEFAULT_METHODS = "ar,eagle2:proposal=topk,eagle2,adt:proposal=topk,adt"
_FILE_FLAGS = ("model_path", "drafter_path", *OWN_FLAGS)  # what belongs to one model
_METHOD_FLAGS = [*settings_fields(MethodSettings), *settings_fields(AdtSettings), *settings_fields(LanternSettings)]


def run_settings(texts: Mapping[str, str]) -> RunSettings:
    """The settings of `generate_images` from texts by flag name; a SettingsError also for missing folders."""
    return _run(*_with_method(*_read("generate_images", texts)))


def _with_method(recipe: Values, given: Values) -> tuple[Values, Values, MethodSettings]:
    """Recipe, command line and the method that they say; a method of the command line leaves out what the recipe sets
    for another one."""
    values = recipe | given
    if any(name in recipe and values[name] != recipe[name] for name in ("method", "verifier")):
        kept = _applicable(values)
        recipe = {name: v for name, v in recipe.items() if name not in _METHOD_FLAGS or name in kept}
        values = recipe | given
    return recipe, given, _method({name: values[name] for name in _METHOD_FLAGS if name in values})


def benchmark_settings(texts: Mapping[str, str]) -> BenchmarkSettings:
    """The settings of `benchmark`; method flags apply to all methods of the list, or of the sweep, that have them."""
    recipe, given = _read("benchmark", texts)
    values = recipe | given
    sweep = _sweep(values, given)
    listed = next((text for text in map(_method_list, (given, recipe)) if text is not None), _DEFAULT_METHODS)
    entries = [entry.strip() for entry in listed.split(",")] if sweep is None else sweep.entries
    source = "--methods" if sweep is None else sweep.where
    shared = {name: values[name] for name in _METHOD_FLAGS if name in values and name != "method"}
    methods = tuple(listed_method(entry, shared, source) for entry in entries)
    for name in shared:
        if name in given and not any(name in _applicable(vars(method)) for method in methods):
            refuse(name, given[name], f"only for a method that has it; {source} has {', '.join(entries)}")
    for name in ("overwrite", "trace"):
        if values.get(name):
            refuse(name, True, "only with generate_images")
    own = {name: values[name] for name in settings_fields(BenchmarkSettings) if name in values}
    if sweep is not None:
        sweep.check(methods, given)
        own.setdefault("quality", bool(sweep.quality))
    run = _run(recipe, given, next((method for method in methods if method.drafted), methods[0]))
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
    recipe, given = _read("evaluate", texts)
    settings = EvaluateSettings(**recipe | given)
    if settings.ref_dir is not None and not Path(settings.ref_dir).is_dir():
        refuse("ref_dir", settings.ref_dir, "a folder of images")
    return settings


def extraction_settings(texts: Mapping[str, str]) -> ExtractionSettings:
    """The settings of `extract_tokens`; a SettingsError also for missing folders."""
    recipe, given = _read("extract_tokens", texts)
    values = recipe | given
    own = {name: values[name] for name in settings_fields(ExtractionSettings) if name in values}
    sampled = own.get("from_prompts", False)
    if sampled == ("data_dir" in own):
        found = "found together with --from_prompts" if sampled else "missing"
        raise SettingsError(f"--data_dir: {found}; allowed: images with captions, or --from_prompts without it")
    if not sampled:
        if name := next((name for name in given if name in OF_SAMPLES), None):
            refuse(name, given[name], "only with --from_prompts")
        recipe = {name: value for name, value in recipe.items() if name not in OF_SAMPLES}
    given |= {"prompt": own.get("prompt", OWN_CAPTIONS), "num_images": -1}
    run = _run(*_with_method({"method": "jacobi"} | recipe, given))
    return ExtractionSettings(run, **own)


def inspect_settings(texts: Mapping[str, str]) -> InspectSettings:
    """The settings of `inspect`; a SettingsError for a folder that is not there, not for what is missing in it."""
    settings = InspectSettings(**_typed("inspect", texts))
    for flag in ("model_path", "drafter_path", "tokenizer_path"):
        _check_place(flag, getattr(settings, flag), settings.model)
    return settings


def distance_settings(texts: Mapping[str, str]) -> DistanceSettings:
    """The settings of `vq_distances`; the table is written into the folder --model_path, so no hub id will do."""
    settings = DistanceSettings(**_typed("vq_distances", texts))
    if not Path(settings.model_path).is_dir():
        refuse("model_path", settings.model_path, "a folder, which will hold vq_distances")
    _check_place("tokenizer_path", settings.tokenizer_path, settings.model)
    return settings


def train_settings(texts: Mapping[str, str]) -> TrainSettings:
    """The settings of `train_drafter`; a SettingsError also for missing folders."""
    recipe, given = _read("train_drafter", texts)
    values = recipe | given
    for name, allowed in (("tokens", "a folder that extract_tokens wrote"), ("output_dir", "a folder")):
        if name not in values:
            raise SettingsError(f"--{name}: missing; allowed: {allowed}")
    sampling = {name: values.pop(name) for name in settings_fields(SamplingSettings) if name in values}
    method = listed_method(values.get("eval_method", "adt"), {}, "--eval_method")
    settings = TrainSettings(**values, sampling=SamplingSettings(**sampling), evaluated=method)
    if not (Path(settings.tokens) / "about.json").is_file():
        refuse("tokens", settings.tokens, "a folder with about.json, which extract_tokens wrote")
    check_folders(settings.run)
    _check_place("start", settings.start, settings.model)
    return settings


def _method_list(values: Values) -> str | None:
    """--methods, or the list that --method stands for in a benchmark: plain decoding and that method."""
    if "methods" in values and "method" in values:
        refuse("method", values["method"], "not together with --methods")
    if values.get("method", "ar") != "ar":
        return f"ar,{values['method']}"
    return values.get("methods", values.get("method"))


def read_recipe(path: str, command: str) -> Values:
    """The settings in a YAML file of `flag: value` lines; unknown flags are errors."""
    content = read_yaml(path, "config")
    hidden = [*settings_fields(RecipeFlags), *_aliases(command)]
    flags = {name: f for name, f in flags_of(command).items() if name not in hidden}
    for name, value in content.items():
        check_known(str(name), flags, f"--config {path}")
        if value is None:
            refuse(name, None, f"a value, or no line at all (in {path})")
        if isinstance(value, str) or type(value) is int and kind(flags[name]) is str:  # YAML takes 768 for a number
            content[name] = parse_text(flags[name], name, str(value))
    return content


def _read(command: str, texts: Mapping[str, str]) -> tuple[Values, Values]:
    """What the recipe says and what the command line says; a recipe's files are those of the model it names."""
    given = _typed(command, texts)
    path = given.pop("config", None)
    recipes = [read_recipe(name, command) for name in ([] if path is None else path.split(","))]
    model = next((values["model"] for values in (given, *reversed(recipes)) if "model" in values), None)
    recipe: Values = {}
    for values in recipes:
        foreign = _FILE_FLAGS if values.get("model", model) != model else ()
        recipe |= {name: value for name, value in values.items() if name not in foreign}
    return recipe, _without_aliases(given, recipe.get("method")) if _aliases(command) else given


def _aliases(command: str) -> list[str]:
    """The paper's flags that a command has; `--precision` of train_drafter is a setting of its own."""
    return list(settings_fields(PaperFlags)) if PaperFlags in OWNERS[command] else []


def _typed(command: str, texts: Mapping[str, str]) -> Values:
    """The values that the texts stand for."""
    flags = flags_of(command)
    return {name: parse_text(flags[name], name, text) for name, text in texts.items()}


def _without_aliases(given: Values, recipe_method: str | None) -> Values:
    """The values with the paper's flags replaced by the settings they stand for; `--model_type eagle` alone leaves the
    choice among the drafting methods to the recipe."""
    names = settings_fields(PaperFlags)
    paper = PaperFlags(**{name: value for name, value in given.items() if name in names})
    values = {name: value for name, value in given.items() if name not in names}
    if paper.set_seed is False:
        refuse("set_seed", False, "true: an image always follows from its seed")
    for alias, name, value in (
        ("precision", "dtype", paper.precision),
        ("random_seed", "seed", paper.random_seed),
        ("lantern", "verifier", "lantern" if paper.lantern else None),
    ):
        if value is not None and values.setdefault(name, value) != value:
            refuse(alias, value, f"{values[name]!r}, as --{name} says")
    free = paper.model_type == "eagle" and not (paper.peanut or paper.static_tree)
    method = _paper_method(paper, values.get("method", recipe_method if free and recipe_method != "ar" else None))
    return values if method is None else values | {"method": method}


def _paper_method(paper: PaperFlags, method: str | None) -> str | None:
    """The method that --method and the paper's three flags agree on; None if none of them is given."""
    drafted = tuple(name for name in METHODS if MethodSettings(name).drafted)
    claims = {f"--method {method}": (method,)} if method is not None else {}  # flag -> the methods it goes with
    claims |= {"--peanut": ("adt",)} if paper.peanut else {}
    claims |= {"--static_tree": ("static",)} if paper.static_tree else {}
    claims |= {"--model_type base": ("ar",)} if paper.model_type == "base" else {}
    claims |= {"--model_type eagle": ("eagle2", *drafted)} if paper.model_type == "eagle" else {}
    for flag, fits in claims.items():
        for other, others in claims.items():
            if not set(fits) & set(others):
                raise SettingsError(
                    f"{other}: found together with {flag}, which means {' or '.join(fits)}; "
                    "allowed: flags that mean the same --method"
                )
    return min(claims.values(), key=len)[0] if claims else None


def _applicable(values: Values) -> list[str]:
    """The method flags that have an effect with the method and the verifier of these values."""
    method, verifier = values.get("method", "adt"), values.get("verifier", "exact")
    adt = settings_fields(AdtSettings) if "adt" in METHODS.get(method, {}) else ()
    lantern = settings_fields(LanternSettings) if verifier in RELAXED and method != "ar" else ()
    return ["method", *METHODS.get(method, {}), *([] if method == "ar" else ["verifier"]), *adt, *lantern]


def _method(values: Values) -> MethodSettings:
    plain = {name: value for name, value in values.items() if name in settings_fields(MethodSettings)}
    method, verifier = MethodSettings(method=plain.get("method", "adt")).method, plain.get("verifier", "exact")
    parts = {}
    for name, owner, fits, where in (
        ("adt", AdtSettings, method == "adt", f"--method adt, not with --method {method}"),
        ("lantern", LanternSettings, verifier in RELAXED,
         f"--verifier {' or '.join(RELAXED)}, not with --verifier {verifier}"),
    ):  # fmt: skip
        flags = {flag: f.name for flag, f in settings_fields(owner).items() if flag in values}
        if flags and not fits:
            flag = next(iter(flags))
            refuse(flag, values[flag], f"only with {where}")
        parts[name] = owner(**{field: values[flag] for flag, field in flags.items()}) if flags else None
    return MethodSettings(**plain, **parts)


def listed_method(entry: str, shared: Values, source: str = "--methods") -> MethodSettings:
    """One method of --methods, `name[:flag=value...]`, with the shared values that apply to it; source: for errors."""
    name, *options = entry.split(":")
    if name not in METHODS:
        allowed = f"name[:flag=value...], by commas, with a name of {', '.join(METHODS)}"
        raise SettingsError(f"{source}: found {entry!r}; allowed: {allowed}")
    flags = {flag: f for flag, f in flags_of("benchmark").items() if flag in _METHOD_FLAGS and flag != "method"}
    own: Values = {}
    try:
        for option in options:
            flag, equals, text = option.partition("=")
            check_known(flag, flags)
            if not equals or flag in own:
                refuse(flag, option, "flag=value, once")
            own[flag] = parse_text(flags[flag], flag, text)
        applicable = _applicable(shared | own | {"method": name})
        kept = {flag: value for flag, value in shared.items() if flag in applicable}
        return _method(kept | own | {"method": name})
    except SettingsError as error:
        raise SettingsError(f"{source}, in {entry!r}: {error}") from error


def _run(recipe: Values, given: Values, method: MethodSettings) -> RunSettings:
    values = recipe | given
    if not method.drafted and "drafter_path" not in given:
        values.pop("drafter_path", None)  # a recipe's drafter is for the methods that have one
    if "prompt" not in values:
        raise SettingsError("--prompt: missing; allowed: a text, a .txt file, PartiPrompts, MSCOCO2017Val")
    sampling = {name: values[name] for name in settings_fields(SamplingSettings) if name in values}
    own = {name: values[name] for name in settings_fields(RunSettings) if name in values}
    settings = RunSettings(**own, sampling=SamplingSettings(**sampling), method=method)
    check_folders(settings)
    return settings


def check_folders(settings: RunSettings) -> None:
    """A SettingsError unless the folders of a run are there with their files, or are hub ids, and so is the file of
    image codes."""
    for flag, files in (
        ("model_path", _NETWORK_FILES),
        ("drafter_path", _NETWORK_FILES),
        ("tokenizer_path", ()),
        ("text_encoder_path", (*_NETWORK_FILES, T5_TOKENIZERS)),
    ):
        path = getattr(settings, flag)
        _check_place(flag, path, settings.model)
        for names in files if Path(path or "").is_dir() else ():
            if path and not any((Path(path) / name).is_file() for name in names):
                found = f"found a folder without {' or '.join(names)}"
                raise SettingsError(f"--{flag} {path}: {found}; allowed: one with it; `main.py inspect` says more")
    if settings.vq_path is not None and not Path(settings.vq_path).is_file():
        raise SettingsError(
            f"--vq_path {settings.vq_path}: found no such file; allowed: {SOURCES['llamagen']['vq_path']}"
        )
    elsewhere = None if settings.tokenizer_path is None else Path(settings.tokenizer_path)
    folders = [Path(settings.model_path), *([] if elsewhere is None else [elsewhere])]
    if settings.model not in NEEDED or not all(folder.is_dir() for folder in folders):
        return  # the files of a hub id are known when it has been downloaded
    try:
        NEEDED[settings.model](Path(settings.model_path), elsewhere)
    except ValueError as error:
        flag = "model_path" if elsewhere is None else "tokenizer_path"
        raise SettingsError(f"--{flag} {getattr(settings, flag)}: {error}") from error


def _check_place(flag: str, path: str | None, model: str) -> None:
    """A SettingsError, with the place where users get the files, unless a path is a folder or a hub id."""
    if path is not None and not Path(path).is_dir() and not _is_hub_id(path):
        home = ROOT / MODELS[model]
        examples = dict.fromkeys(("drafter_path", "start"), home / "drafter")
        examples["text_encoder_path"] = home.parent / "t5/flan-t5-xl"
        allowed = f"a folder such as {examples.get(flag, home)}, or owner/name"
        source = SOURCES[model].get("drafter_path" if flag == "start" else flag, META_FILES)
        raise SettingsError(f"--{flag} {path}: found no such folder; allowed: {allowed}; the files: {source}")


def _is_hub_id(path: str) -> bool:
    """Whether `path` is owner/name rather than a mistyped folder: no folder `owner` is here."""
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path) is not None
    return is_id and not Path(path).parent.exists()
