"""`tune`: the fastest lossless method for a model on a machine."""

from dataclasses import replace
from itertools import product

from commands import Command
from commands.benchmark import drafted_first
from configs.benchmark import CANDIDATES, TuneSettings, entries_of
from configs.fields import Values, flags_in, refuse
from configs.methods import MethodSettings
from configs.recipes import RecipeFlags, composed, listed_method
from configs.schema import RunSettings
from runs.opening import look_at
from runs.prompts import prompt_items
from runs.tuned import lacks_drafter


def tune_settings(recipe: Values, given: Values) -> TuneSettings:
    """Return the settings of the command; a SettingsError also for a method that is not exact."""
    values = {"prompt": TuneSettings.prompt} | recipe | given
    listed = values.get("methods")
    entries = CANDIDATES if listed is None else entries_of(listed)
    # Equal methods are tried once; errors show the entry as it was typed.
    methods = {listed_method(entry, {}): entry for entry in entries}
    if listed is None and lacks_drafter(values):
        methods = {method: entry for method, entry in methods.items() if not method.drafted}
    method = drafted_first(tuple(methods))
    run = RunSettings.of(composed(values, given, method), method=method)
    look_at(run.engine)
    for method, entry in methods.items():
        if not method.same_tokens(run.engine.sampling.temperature):
            refuse("methods", entry, "methods that generate the images of ar: --verifier exact")
    tried = tuple(method for method in methods if method.speculative)
    if not tried:
        refuse("methods", listed, "at least one method other than ar")
    settings = TuneSettings.of(values, run=run, tried=tried)
    for method, size in product(tried, settings.sizes):
        # refuses what does not go together
        replace(run.engine.with_method(method), batch_size=size)
    prompt_items(run.prompts)  # reports a bad prompt file before the slow imports
    return settings


COMMAND = Command(
    "tune",
    "find the fastest lossless method and batch size for your model and machine; writes a recipe",
    (TuneSettings, RecipeFlags),
    tune_settings,
    "eval.bench.tune:run_tune",
    "eval.bench.tune:plan_tune",
    without=("overwrite", "trace", "output_dir", "batch_size", *flags_in(MethodSettings)),
    resumes=True,
)
