"""The flags of methods: which of them a method has, and the settings that they make."""

from collections.abc import Iterable

from configs.acceptance import NUMBERS, VERIFIERS, rules_with
from configs.fields import (
    SettingsError,
    Values,
    build,
    flags_in,
    parse_text,
    refuse,
    settings_fields,
)
from configs.given import read_recipe
from configs.method_table import METHODS, AdtSettings
from configs.methods import MethodSettings
from configs.words import check_known

METHOD_FLAGS = flags_in(MethodSettings)


def with_method(recipe: Values, given: Values) -> tuple[Values, MethodSettings]:
    """Return all values of a recipe and a command line, and the method that they make.

    A command line with another method or rule leaves out what the recipe sets for its own.
    """
    values = recipe | given
    if any(name in recipe and values[name] != recipe[name] for name in ("method", "verifier")):
        kept = applicable(values)
        recipe = {name: v for name, v in recipe.items() if name not in METHOD_FLAGS or name in kept}
        values = recipe | given
    return values, method_of(values)


def listed_method(entry: str, shared: Values, source: str = "--methods") -> MethodSettings:
    """Return one method of a list, `name[:flag=value...]`; errors name the list, `source`.

    The name may also be a recipe, a YAML file, whose method flags are taken.

    shared: values for all methods of the list that have such a flag.
    """
    name, *options = entry.split(":")
    if name not in METHODS and not _is_recipe(name):
        allowed = (
            f"name[:flag=value...], by commas, with a name of {', '.join(METHODS)}, or a recipe"
        )
        raise SettingsError(f"{source}: found {entry!r}; allowed: {allowed}")
    flags = {flag: f for flag, f in METHOD_FLAGS.items() if flag != "method"}
    own: Values = {}
    try:
        recipe = _method_recipe(name) if _is_recipe(name) else {"method": name}
        for option in options:
            flag, equals, text = option.partition("=")
            check_known(flag, "benchmark", flags)
            if not equals or flag in own:
                refuse(flag, option, "flag=value, once")
            own[flag] = parse_text(flags[flag], flag, text)
        own = with_method(recipe, own)[0]
        fitting = applicable(shared | own)
        kept = {flag: value for flag, value in shared.items() if flag in fitting}
        return method_of(kept | own)
    except SettingsError as error:
        raise SettingsError(f"{source}, in {entry!r}: {error}") from error


def run_values_of(entries: Iterable[str]) -> Values:
    """Return what the recipes among a list's entries say of the whole run, as its temperature.

    Raises:
        SettingsError: two recipes disagree, since all methods of a list share one run.
    """
    run: Values = {}
    for path in dict.fromkeys(entry.split(":")[0] for entry in entries):
        for flag, value in read_recipe(path, "benchmark").items() if _is_recipe(path) else ():
            if flag in METHOD_FLAGS:
                continue
            if flag in ("methods", "sweep", "cells"):
                refuse(flag, value, f"one method in a recipe that stands in a list ({path})")
            if run.setdefault(flag, value) != value:
                refuse(flag, value, f"{run[flag]}, as an earlier recipe of the list says ({path})")
    return run


def _is_recipe(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _method_recipe(path: str) -> Values:
    """Return the method flags in a recipe."""
    values = read_recipe(path, "benchmark")
    flags = {flag: value for flag, value in values.items() if flag in METHOD_FLAGS}
    if "method" not in flags:
        raise SettingsError(f"{path}: method: missing; allowed: a line `method: NAME`")
    return flags


def method_of(values: Values) -> MethodSettings:
    """Return the method that values by flag make; a SettingsError for numbers of another one."""
    method, verifier = values.get("method", "adt"), values.get("verifier", "exact")
    if method != "adt" and method in METHODS:
        _refuse_numbers(values, AdtSettings, "adt", f"--method {method}")
    for numbers in NUMBERS if verifier in VERIFIERS else ():
        if VERIFIERS[verifier].numbers is not numbers:
            names = " or ".join(rules_with(numbers))
            _refuse_numbers(values, numbers, names, f"--verifier {verifier}")
    return build(MethodSettings, values)


def applicable(values: Values) -> list[str]:
    """Return the method flags that have an effect with the method and the verifier of `values`."""
    method = METHODS.get(values.get("method", "adt"))
    rule = VERIFIERS.get(values.get("verifier", "exact"))
    own = [] if method is None else list(method.defaults)
    own += ["verifier"] if method and method.speculative else []
    own += settings_fields(AdtSettings) if "adt" in own else ()
    own += settings_fields(rule.numbers) if "verifier" in own and rule and rule.numbers else ()
    return ["method", *own]


def _refuse_numbers(values: Values, numbers: type, names: str, own: str) -> None:
    """Refuse a flag of numbers that only other methods or rules, `names`, have."""
    for flag in settings_fields(numbers):
        if flag in values:
            switch = own.split()[0]
            refuse(flag, values[flag], f"only with {switch} {names}, not with {own}")
