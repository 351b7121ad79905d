"""What a command line and its recipes say: words, then values by flag, then a method.

fire sees none of the flags: it runs a command first and complains about flags afterwards, takes
`--prompt` without a value for True, fills parameters with stray words and lets the last of two
values win.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from configs.commands import RecipeFlags, flags_of
from configs.fields import (
    SettingsError,
    Values,
    allowed,
    flags_in,
    in_checkout,
    kind,
    mismatch,
    missing,
    near_names,
    one_of,
    parse,
    read_yaml,
    refuse,
    refusing,
    settings_fields,
)
from configs.gone import GONE_FLAGS
from configs.lists import split_list
from configs.methods import METHODS, OF_YOUR_OWN, MethodSettings, applicable
from configs.targets import ROOT, TARGETS, model_defaults, own_flags

TUNED = "tuned"  # key of a recipe that `tune` wrote: where and when its method was the fastest
_FILE_FLAGS = ("model_path", "drafter_path", *own_flags())  # what belongs to one model


def method_flags() -> dict[str, Field]:
    """Return the flags that a method of a list may have; a plugin may bring some."""
    return flags_in(MethodSettings)


def read_words(command: str, words: Sequence[str]) -> dict[str, str]:
    """Return the texts of the flags, by name, in the words that follow a command."""
    import_named_plugin(command, words)  # first: it may bring flags, methods and rules
    flags, texts, rest = flags_of(command), {}, list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            _refuse_word(word, flags)
        name, equals, text = word[2:].partition("=")
        name = name.replace("-", "_")
        negated = None if equals else _negated(name, flags)
        check_flag(negated or name, command, flags)
        if negated:
            name, text = negated, "false"
        elif not equals:
            text = _value(name, flags[name], rest)
        if name in texts:
            raise mismatch(f"--{name}", f"{texts[name]!r} and {text!r}", "one value")
        texts[name] = text
    return texts


def is_dry(texts: dict[str, str]) -> bool:
    """Take --dry_run out of a command line's texts; returns whether it is on."""
    flag = settings_fields(RecipeFlags)["dry_run"]
    return parse(flag, "dry_run", texts.pop("dry_run", "false"))


def check_flag(name: str, command: str, flags: Mapping[str, Field], file: str = "") -> None:
    """Refuse a name that is none of the flags; the error says which are like it.

    file: what has the name as a key, if it stands in a file.
    """
    if name in flags:
        return
    shown, dashes = (f"{file}: {name}", "") if file else (f"--{name}", "--")
    if hint := GONE_FLAGS.get(name):
        raise SettingsError(f"{shown}: {command} has no such flag; {hint}")
    listed = f"`python main.py {command} --help all` lists the flags."
    hints = filter(None, (near_names(name, flags, dashes), listed))
    raise SettingsError(f"{shown}: unknown flag. {' '.join(hints)}")


def _negated(name: str, flags: Mapping[str, Field]) -> str | None:
    """Return the switch that `noNAME` or `no_NAME` turns off."""
    target = name.removeprefix("no").removeprefix("_")
    negates = name not in flags and name.startswith("no") and target in flags
    return target if negates and kind(flags[target]) is bool else None


def _value(name: str, f: Field, rest: list[str]) -> str:
    """Return the text of a flag without '=': the next word, taken off `rest`; of a switch true."""
    if kind(f) is bool:
        return rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
    # The next word is a flag itself, unless it is a text such as "-1" or "-5 °C".
    if not rest or re.match(r"--|-[a-zA-Z]", rest[0]):
        got = f"the flag {rest[0]!r}" if rest else "nothing"
        advice = f"Write a value that starts with a dash as --{name}=VALUE." if rest else ""
        raise mismatch(f"--{name}", got, allowed(f), advice)
    return rest.pop(0)


def _refuse_word(word: str, flags: Mapping[str, Field]) -> NoReturn:
    if word.startswith("-") and word not in ("-", "--"):
        raise SettingsError(f"{word}: unknown flag. Write flags with two dashes: --flag value.")
    advice = "Write values after their flag: --flag value or --flag=value."
    if word in TARGETS and "model" in flags:
        advice = f"Did you mean --model {word}?"
    elif "prompt" in flags:
        advice = 'Put a prompt with spaces in quotes: --prompt "a red circle".'
    raise SettingsError(f"{word!r}: a word without a flag. {advice}")


def read(command: str, texts: Mapping[str, str]) -> tuple[Values, Values]:
    """Return what the recipes say, and what the command line says, by flag.

    A recipe's files are left out if another model than the recipe's is asked for.
    """
    flags = flags_of(command)
    given = {name: parse(f, name, texts[name]) for name, f in flags.items() if name in texts}
    given.pop("plugin", None)
    path = given.pop("config", None)
    names = [] if path is None else split_list(path)
    if not all(names):
        refuse("config", path, "names of YAML files, with one comma between two")
    recipes = [read_recipe(name, command) for name in names]
    # models[0] counts: the command line's, or else the latest recipe's.
    models = [values["model"] for values in (given, *reversed(recipes)) if "model" in values]
    recipe: Values = model_defaults(models[0]) if models and "cfg" in flags else {}
    for values in recipes:
        foreign = _FILE_FLAGS if models and values.get("model", models[0]) != models[0] else ()
        kept = {name: value for name, value in values.items() if name not in foreign}
        recipe = overridden(recipe, kept)
    return recipe, given


def import_named_plugin(command: str, words: Sequence[str]) -> None:
    """Import the module that `--plugin NAME` or `--plugin=NAME` names, if the words have one."""
    for word, following in pairwise([*words, "-"] if "plugin" in flags_of(command) else ()):
        flag, equals, text = word.partition("=")
        if flag == "--plugin" and (equals or not following.startswith("-")):
            import_plugin(text if equals else following)


PLUGINS: dict[str, None] = {}  # names of the modules that --plugin has imported


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


def read_recipe(path: str, command: str) -> Values:
    """Return the settings in a YAML file of `flag: value` lines; unknown flags are errors."""
    typed = settings_fields(RecipeFlags)
    flags = {name: f for name, f in flags_of(command).items() if name not in typed}
    texts = read_yaml(path, "config")
    tuned = {TUNED: texts.pop(TUNED)} if TUNED in texts else {}
    for found in tuned.values():  # what is read of it
        parts = found if isinstance(found, dict) else {}
        if not (isinstance(parts.get("method"), str) and isinstance(parts.get("conditions"), dict)):
            raise mismatch(f"--config {path}: {TUNED}", "another value", "what `tune` writes")
    for name, text in texts.items():
        check_flag(name, command, flags, f"--config {path}")
        if not isinstance(text, str) or not text:
            refuse(name, text or None, f"one value, or no line at all (in {path})")
    values = {name: parse(flags[name], name, text) for name, text in texts.items()}
    included = Path(in_checkout(path)).resolve().is_relative_to(ROOT)
    return (absolute_paths(values, flags) if included else values) | tuned


def absolute_paths(values: Values, flags: Mapping[str, Field]) -> Values:
    """Return an included recipe's values; a model's files that are not here are the checkout's."""
    paths = [name for name in _FILE_FLAGS if name in values and "path" in flags[name].metadata]
    return values | {name: in_checkout(values[name]) for name in paths}


def with_method(recipe: Values, given: Values) -> tuple[Values, MethodSettings]:
    """Return all values of a recipe and a command line, and the method that they make."""
    values = overridden(recipe, given)
    return values, MethodSettings.of(values)


def overridden(recipe: Values, given: Values) -> Values:
    """Return the values of a recipe and of what wins over it: a later recipe, or a command line.

    Another method or rule leaves out what the recipe sets for its own.
    """
    values = recipe | given
    if any(name in recipe and values[name] != recipe[name] for name in ("method", "verifier")):
        others = method_flags().keys() - applicable(values)
        recipe = {name: value for name, value in recipe.items() if name not in others}
    return recipe | given


def listed_method(entry: str, shared: Values, source: str = "--methods") -> MethodSettings:
    """Return one method of a list, `name[:flag=value...]`; errors name the list, `source`.

    The name may also be a recipe, a YAML file, whose method flags are taken.
    shared: values for all methods of the list that have such a flag.
    """
    name, *options = entry.split(":")
    if name not in METHODS and not _is_recipe(name):
        expected = f"name[:flag=value...] with the name {one_of(METHODS)}, or a recipe.yaml"
        raise mismatch(source, repr(entry), expected, near_names(name, METHODS) or OF_YOUR_OWN)
    flags = {flag: f for flag, f in method_flags().items() if flag != "method"}
    given: Values = {}
    with refusing(f"{source}, in {entry!r}: "):
        recipe = {"method": name}
        if _is_recipe(name):
            written = read_recipe(name, "benchmark")
            recipe = {flag: value for flag, value in written.items() if flag in method_flags()}
            if "method" not in recipe:
                raise missing(name, "a line `method: NAME`")
        for option in options:
            flag, equals, text = option.partition("=")
            check_flag(flag, "benchmark", flags)
            if not equals or flag in given:
                refuse(flag, option, "flag=value, once")
            given[flag] = parse(flags[flag], flag, text)
        values, _ = with_method(recipe, given)
        kept = shared.keys() & applicable(shared | values)
        return MethodSettings.of({flag: shared[flag] for flag in kept} | values)


def run_values_of(entries: Iterable[str], model: str | None = None) -> Values:
    """Return what the recipes in a list say of the whole run; they must not disagree.

    model: the one that is asked for, whatever they say; another one, and its files, are left out.
    """
    run: Values = {}
    for path in dict.fromkeys(entry.split(":")[0] for entry in entries):
        values = recipe_of(path)
        other = model not in (None, values.get("model", model))
        foreign = ("model", *_FILE_FLAGS) if other else ()
        for flag, value in values.items():
            if flag in method_flags() or flag == TUNED or flag in foreign:
                continue
            if flag in ("methods", "sweep", "cells"):
                refuse(flag, value, f"one method in a recipe that stands in a list ({path})")
            if run.setdefault(flag, value) != value:
                refuse(flag, value, f"{run[flag]}, as an earlier recipe of the list says ({path})")
    return run


def recipe_of(entry: str) -> Values:
    """Return what the recipe of a list's entry says; nothing if the entry is a method."""
    path = entry.split(":")[0]
    return read_recipe(path, "benchmark") if _is_recipe(path) else {}


def _is_recipe(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))
