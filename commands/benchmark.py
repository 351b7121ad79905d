"""`benchmark`: several methods on the same prompts and seeds, and sweeps of their settings."""

from pathlib import Path

from commands import Command
from configs.benchmark import BenchmarkSettings, MethodsFlags, Sweep, entries_of, read_sweep
from configs.fields import Values, refuse
from configs.methods import MethodSettings, applicable
from configs.recipes import (
    RecipeFlags,
    composed,
    listed_method,
    method_flags,
    of_batch,
    recipe_of,
)
from configs.schema import RunSettings
from runs.opening import look_at, tell_foreign_numbers
from runs.prompts import prompt_items
from runs.tuned import warn_of_conditions

_DEFAULT_METHODS = "ar,eagle2:proposal=topk,eagle2,adt:proposal=topk,adt"


def benchmark_settings(recipe: Values, given: Values) -> BenchmarkSettings:
    """Return the settings of the command; method flags go to all methods that have them."""
    recipe = of_batch(recipe, given)
    values = recipe | given
    sweep = _sweep(values, given)
    listed = _method_list(given) or _method_list(recipe) or _DEFAULT_METHODS
    entries = entries_of(listed) if sweep is None else sweep.entries
    source = "--methods" if sweep is None else sweep.where
    flags = method_flags()
    shared = {name: values[name] for name in flags if name in values and name != "method"}
    methods = tuple(listed_method(entry, shared, source) for entry in entries)
    for name in shared:
        if name in given and not any(name in applicable(vars(method)) for method in methods):
            allowed = f"only for a method that has it; {source} has {', '.join(entries)}"
            refuse(name, given[name], allowed)
    method = drafted_first(methods)
    run = RunSettings.of(composed(recipe, given, method), method=method)
    look_at(run.engine)
    tell_foreign_numbers(run.engine.model_path, *methods)
    for entry, method in zip(entries, methods, strict=True):
        warn_of_conditions(recipe_of(entry) or values, run.engine.with_method(method))
    prompt_items(run.prompts)  # reports a bad prompt file before the slow imports
    varied = next((name for name in sweep.axes if name in given), None) if sweep else None
    if varied is not None and sweep is not None:
        refuse(varied, given[varied], f"only without {sweep.where}, which varies it")
    usual = None if sweep is None else f"outputs/sweeps/{Path(sweep.path).stem}"
    output = run.output_dir if "output_dir" in values else usual
    parts = {"run": run, "methods": methods, "output": output, "sweep": sweep}
    return BenchmarkSettings.of(values, **parts)


def drafted_first(methods: tuple[MethodSettings, ...]) -> MethodSettings:
    """Return a method that needs the drafter, if any: its settings keep the drafter's path."""
    return next((method for method in methods if method.drafted), methods[0])


def _sweep(values: Values, given: Values) -> Sweep | None:
    if "sweep" not in values:
        if "cells" in values:
            refuse("cells", values["cells"], "only with --sweep")
        return None
    for name in ("method", "methods"):
        if name in given:
            refuse(name, given[name], "only without --sweep")
    return read_sweep(values["sweep"], values.get("cells"))


def _method_list(values: Values) -> str | None:
    """Return --methods, or the list that --method stands for: plain decoding and that method."""
    if "methods" in values and "method" in values:
        refuse("method", values["method"], "only without --methods")
    if values.get("method", "ar") != "ar":
        return f"ar,{values['method']}"
    return values.get("methods", values.get("method"))


COMMAND = Command(
    "benchmark",
    "compare methods on the same prompts and seeds; prints a table, then one line of JSON",
    (MethodsFlags, BenchmarkSettings, RecipeFlags),
    benchmark_settings,
    "eval.bench.benchmark:run_benchmark",
    "eval.bench.benchmark:plan_benchmark",
    without=("overwrite", "trace"),
)
