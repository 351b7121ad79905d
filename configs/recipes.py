"""Recipes, lists of methods and plugins: values by flag, of which the later win.

A recipe is a YAML file of `flag: value` lines. Several are joined, the command line wins over them.
"""

import importlib
import os
import re
import sys
from collections.abc import Container, Iterable, Mapping
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from configs.downloads import damage, failed_download
from configs.fields import (
    ROOT,
    Flag,
    Settings,
    SettingsError,
    Values,
    flags_in,
    found_at,
    in_checkout,
    mismatch,
    missing,
    near_names,
    one_of,
    parse,
    refuse,
    refusing,
    setting,
    split_list,
)
from configs.gone import GONE_FLAGS, said_here
from configs.methods import METHODS, OF_YOUR_OWN, MethodSettings, applicable
from configs.model import SamplingSettings
from configs.schema import RunSettings
from configs.targets import TARGETS, own_flags

OF_FAMILY = ("dtype", *flags_in(SamplingSettings))
TUNED = "tuned"  # key of a recipe that `tune` wrote: where and when its method was the fastest
PLUGINS: dict[str, None] = {}  # names of the modules that --plugin has imported


@dataclass(frozen=True)
class RecipeFlags(Settings, group="Recipe"):
    """Recipes, and methods and rules from outside the checkout."""

    config: str | None = setting(
        "YAML files of `flag: value` lines, by commas; a later one and the command line win",
        shown="none",
        many=True,
    )
    plugin: str | None = setting(
        "Python module, package.module, that registers your method or acceptance rule", shown="none"
    )
    dry_run: bool = setting(
        "check settings, files, prompts, disk and what is done already; print what would be done, "
        "with memory and images, and stop before anything is loaded",
        False,
    )


class Known(NamedTuple):
    """The flags that a command has."""

    command: str
    flags: Mapping[str, Field]


def of_runs() -> Known:
    """Return the flags of runs, which a recipe of any command may have; a plugin may bring some."""
    return Known("generate_images", flags_in(RunSettings))


def method_flags() -> dict[str, Field]:
    """Return the flags that a method of a list may have; a plugin may bring some."""
    return flags_in(MethodSettings)


def unknown_flag(name: str, known: Known, dashes: str = "--") -> SettingsError:
    """Return the error of a name that is none of the flags; it says which are like it.

    dashes: before flags; none in a file.
    """
    source = Flag(name) if dashes else name
    if hint := GONE_FLAGS.get(name):
        return SettingsError(f"{known.command} has no such flag; {hint}", source)
    listed = f"`python main.py {known.command} --help` lists the flags."
    hint = said_here(name, known.flags) or near_names(name, known.flags, dashes)
    hints = filter(None, (hint, listed))
    return SettingsError("unknown flag", source, advice=" ".join(hints))


def joined(config: str | None, given: Values, known: Known) -> Values:
    """Return what the model's own recipe says and what those of --config say; a later one wins.

    given: what the command line says. If it has another model than a recipe, the recipe's files are
    left out.
    """
    names = [] if config is None else split_list(config)
    if not all(names):
        refuse("config", config, "names of YAML files, with one comma between two")
    recipes = [read_recipe(name, known) for name in names]
    # models[0] counts: the command line's, or else the latest recipe's.
    models = [values["model"] for values in (given, *reversed(recipes)) if "model" in values]
    recipe = family_recipe(models[0], known.flags) if models else {}
    for name, values in zip(names, recipes, strict=True):
        foreign = _file_flags() if models and values.get("model", models[0]) != models[0] else ()
        kept = [f"--{n} {values[n]}" for n in OF_FAMILY if n in values and n not in given]
        if foreign and kept:
            words = f"{', '.join(kept)} are taken from it, its files are not"
            of = f"--config {name} is of {values['model']}, not {models[0]}"
            print(f"note: {of}: {words}", file=sys.stderr)
        recipe = overridden(recipe, without(values, foreign))
    return recipe


def model_recipe(model: str) -> Values:
    """Return what a model's own recipe, configs/<model>.yaml, says; one of your own may lack it."""
    path = ROOT / "configs" / f"{model}.yaml"
    if model not in TARGETS or not path.exists():
        return {}
    return read_recipe(str(path), of_runs())


def family_recipe(model: str, flags: Container[str] = OF_FAMILY) -> Values:
    """Return number type and sampling as a model's own recipe says. flags: that the caller has."""
    values = model_recipe(model)
    return {name: values[name] for name in values if name in OF_FAMILY and name in flags}


def paper_rows() -> list[str]:
    """Return the names of the paper's rows that are no methods: adt_lantern, lantern, ..."""
    names = sorted(path.stem for path in (ROOT / "configs" / "paper").glob("*.yaml"))
    return [name for name in names if name not in METHODS]


def paper_row(name: str) -> str | None:
    """Return the recipe of a row of the paper, such as adt_lantern or adt-lantern; or None."""
    row = name.replace("-", "_")
    return f"configs/paper/{row}.yaml" if row in paper_rows() else None


def import_plugin(name: str) -> None:
    """Import the module of --plugin, which registers methods or rules; also from here."""
    sys.path.append(os.getcwd())  # a command that is installed does not look where it is called
    try:
        # as a path, which Python would take for a part of a package; or none
        if not name or name.startswith("."):
            raise ModuleNotFoundError(name=name)
        importlib.import_module(name)
        PLUGINS[name] = None
    except ModuleNotFoundError as error:
        # Only the plugin's own name is a wrong flag; if it lacks a module, its traceback says more.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        allowed = "the name of a module, package.module, installed or in the working folder"
        refuse("plugin", name, allowed)
    finally:
        sys.path.pop()


def read_recipe(path: str, known: Known) -> Values:
    """Return the settings in a YAML file of `flag: value` lines; unknown flags are errors."""
    known = Known(known.command, {n: f for n, f in known.flags.items() if n not in _NO_LINES})
    texts = read_yaml(path, "config")
    tuned = {TUNED: texts.pop(TUNED)} if TUNED in texts else {}
    with refusing(Flag("config", path)):
        for found in tuned.values():  # what is read of it
            if not _is_tuned(found):
                raise mismatch(TUNED, "another value", "what `tune` writes")
        for name, text in texts.items():
            if name not in known.flags:
                raise unknown_flag(name, known, dashes="")
            if not isinstance(text, str) or not text:
                refuse(name, text or None, "one value, or no line at all")
        values = {name: parse(known.flags[name], name, text) for name, text in texts.items()}
    if Path(in_checkout(path)).resolve().is_relative_to(ROOT):
        values |= _in_checkout(values)
    return values | tuned


def _is_tuned(found: object) -> bool:
    """Return whether a value has what is read of the part that `tune` writes about its work."""
    if not isinstance(found, dict) or not isinstance(found.get("conditions"), dict):
        return False
    batches = found.get("batches")
    return isinstance(batches, list) and bool(batches) and all(map(_is_batch, batches))


def _is_batch(one: object) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("method"), str):
        return False
    size = one.get("batch_size")
    return isinstance(size, str) and size.isdecimal()


def of_batch(recipe: Values, given: Values) -> Values:
    """Return a recipe that `tune` wrote with the method of another batch size, if one is given."""
    images = given.get("batch_size")
    if TUNED not in recipe or images in (None, recipe.get("batch_size")):
        return recipe
    return without(recipe, method_flags()) | tuned_method(recipe[TUNED], images)[1]


def tuned_method(tuned: Mapping[str, Any], images: int) -> tuple[int, Values]:
    """Return a batch size that was measured, and the flags of the method that is fastest with it.

    It is the one asked for, or else the next smaller one, or the smallest.

    tuned: the part of a recipe that says how it was tuned.
    """
    flags, batches = method_flags(), {int(one["batch_size"]): one for one in tuned["batches"]}
    size = max((size for size in batches if size <= images), default=min(batches))
    best = batches[size]
    values = {name: parse(flags[name], name, text) for name, text in best.items() if name in flags}
    return size, values


def _file_flags() -> tuple[str, ...]:
    """Return the flags of what belongs to one model."""
    return "model_path", "drafter_path", *own_flags()


def _in_checkout(values: Values) -> Values:
    """Return an included recipe's files; those that are not here are the checkout's."""
    paths = [name for name in _file_flags() if name in values and name.endswith("_path")]
    return {name: in_checkout(values[name]) for name in paths}


def overridden(recipe: Values, given: Values) -> Values:
    """Return the values of a recipe and of what wins over it: a later recipe, or a command line.

    Another method or rule leaves out what the recipe sets for its own. With another batch size, a
    recipe of `tune` has another method; with a flag of a method it is no longer one of `tune`.
    """
    if not method_flags().keys().isdisjoint(given):
        recipe = without(recipe, [TUNED])
    recipe = of_batch(recipe, given)
    values = recipe | given
    if any(name in recipe and values[name] != recipe[name] for name in ("method", "verifier")):
        recipe = without(recipe, method_flags().keys() - applicable(values))
    return recipe | given


def composed(recipe: Values, given: Values, method: MethodSettings | None = None) -> Values:
    """Return what settings are made of; a recipe's drafter is for methods that have one.

    method: what is decoded with, where it is not the method in the values.
    """
    values = overridden(recipe, given)
    name = values.get("method", "adt") if method is None else method.method
    idle = name in METHODS and not METHODS[name].drafted
    return without(values, {"drafter_path"} - given.keys()) if idle else values


def without(values: Values, names: Iterable[str]) -> Values:
    """Return the values of other flags than those named."""
    return {name: value for name, value in values.items() if name not in names}


def listed_method(entry: str, shared: Values, source: str = "--methods") -> MethodSettings:
    """Return one method of a list, `name[:flag=value...]`; errors name the list, `source`.

    The name may also be a recipe, a YAML file of a method's flags.
    shared: values for all methods of the list that have such a flag.
    """
    name, options = _named(entry)
    if name not in METHODS and not _is_recipe(name):
        expected = f"name[:flag=value...] with the name {one_of(METHODS)}, or a recipe.yaml"
        near = near_names(name, [*METHODS, *paper_rows()])
        raise mismatch(source, repr(entry), expected, near or OF_YOUR_OWN)
    known = Known("benchmark", {flag: f for flag, f in method_flags().items() if flag != "method"})
    given: Values = {}
    with refusing(f"{source}, in {entry!r}"):
        written = recipe_of(name) or {"method": name}
        recipe = {flag: value for flag, value in written.items() if flag in method_flags()}
        for option in options:
            flag, equals, text = option.partition("=")
            if flag in of_runs().flags.keys() - method_flags():
                refuse(flag, text, "only for all methods, as a flag of the command")
            if flag not in known.flags:
                raise unknown_flag(flag, known)
            if not equals or flag in given:
                refuse(flag, option, "flag=value, once")
            given[flag] = parse(known.flags[flag], flag, text)
        values = overridden(recipe, given)
        kept = shared.keys() & applicable(shared | values)
        return MethodSettings.of({flag: shared[flag] for flag in kept} | values)


def recipe_of(entry: str) -> Values:
    """Return what the recipe of a list's entry says; nothing if the entry is a method.

    It sets a method's flags. What `tune` wrote also names a model and its files, which are not read
    here.
    """
    path, _ = _named(entry)
    if not _is_recipe(path):
        return {}
    values = read_recipe(path, Known("benchmark", flags_in(RunSettings)))
    others = [flag for flag in values if flag not in method_flags()]
    if others and TUNED not in values:
        allowed = f"only as a flag of the command, or in --config ({path})"
        refuse(others[0], values[others[0]], allowed)
    if "method" not in values:
        raise missing(path, "a line `method: NAME`")
    return values


def _named(entry: str) -> tuple[str, list[str]]:
    """Return the method or recipe of a list's entry, whose path may have colons, and options."""
    name = entry.split(":")[0]
    if name not in METHODS and (match := re.match(r"(?s).*?\.ya?ml(?=:|\Z)", entry)):
        name = match[0]
    return paper_row(name) or name, entry[len(name) :].split(":")[1:]


def _is_recipe(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


_NO_LINES = flags_in(RecipeFlags)  # flags that no recipe has


def read_yaml(path: str, flag: str) -> dict[str, Any]:
    """Return the keys of the YAML file that `flag` names; values are texts, or lists and dicts."""
    source, lines = Flag(flag, path), "`name: value` lines"
    try:
        content = yaml.load(Path(in_checkout(path)).read_text("utf-8"), _TextLoader)
    except (FileNotFoundError, IsADirectoryError) as error:
        folder, name = os.path.split(path)
        elsewhere = "" if os.path.isabs(path) or os.path.exists(path) else f", here or in {ROOT}"
        names = [file.name for one in (folder, ROOT / folder) for file in Path(one).glob("*.yaml")]
        near = near_names(name, dict.fromkeys(names), os.path.join(folder, ""))
        included = os.path.join("configs/sweeps" if flag == "sweep" else "configs", path)
        if os.path.isfile(in_checkout(included)):
            near = f"Did you mean {included}?"
        raise mismatch(source, found_at(path) + elsewhere, "a YAML file", near) from error
    except RecursionError as error:
        raise mismatch(source, "lists nested too deeply", lines) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise mismatch(source, damage(Path(path), error), "a YAML file") from error
    if content not in (None, "") and not isinstance(content, dict):
        raise mismatch(source, failed_download(Path(path)) or f"a {type(content).__name__}", lines)
    return content or {}


class _TextLoader(yaml.BaseLoader):
    """YAML in which every value is text, a key stands only once and nothing is null.

    YAML's own reading would make 2024_01_01 the number 20240101, 12:30 750 and 010 8.
    """

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        if node.style is None and node.value in ("~", "null", "Null", "NULL"):
            problem = f"{node.value} for a value; a text is written in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                problem = f"key {key!r} twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_mapping(node, deep)
