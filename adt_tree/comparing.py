"""Methods next to each other on the same prompts and seeds, measured as `benchmark` does."""

from collections.abc import Sequence
from dataclasses import replace

from adt_tree.output import MethodTable
from adt_tree.weights import Weights
from configs.command_line import listed_method
from configs.fields import Values, refuse
from configs.methods import MethodSettings
from configs.model import EngineSettings
from decoding.images import Job
from eval.bench.benchmark import Bench, repeated
from eval.bench.table import table
from runs.commands import engine_settings
from runs.measure import BASELINE
from support.progress import Progress, plural


def compared_methods(entries: Sequence[str], own: MethodSettings) -> tuple[MethodSettings, ...]:
    """Return the methods of a list of names, after plain decoding.

    Args:
        entries: name or name:flag=value:..., as of `benchmark --methods`.
        own: the pipeline's method, which its name alone stands for.

    Raises:
        SettingsError: the list is empty, or an entry is no method.
    """
    if isinstance(entries, str) or not entries or not all(isinstance(e, str) for e in entries):
        refuse("methods", entries, 'a list of names, such as ["ar", "adt"]')
    listed = [own if e == own.method else listed_method(e, {}, "methods") for e in entries]
    return tuple(dict.fromkeys([BASELINE, *listed]))


def settings_for(
    methods: Sequence[MethodSettings], settings: EngineSettings, values: Values
) -> EngineSettings:
    """Return a pipeline's settings, with a method that has a drafter if one of the methods has.

    values: by flag, of which the settings were made.
    """
    drafted = next((method for method in methods if method.drafted), None)
    if drafted is None or settings.method.drafted:
        return settings
    other = engine_settings(values, {"method": drafted.method})
    return replace(other, sampling=settings.sampling, batch_size=settings.batch_size)


def compare_methods(
    weights: Weights,
    settings: EngineSettings,
    methods: tuple[MethodSettings, ...],
    jobs: list[Job],
    repeats: int,
    progress: bool,
) -> MethodTable:
    """Return the figures of methods, the first of which is plain decoding.

    The weights are locked until it is done. progress: whether it is shown.
    """
    with weights.lock:
        session = weights.session(settings)
        what = f"measuring {plural(len(methods), 'method')} on {plural(len(jobs), 'image')}"
        with Progress(what, len(methods) * len(jobs) * repeats, shown=progress) as shown:
            measured = repeated(session, methods, jobs, (repeats, 1), shown)
        bench = Bench(session, jobs, None)
        rows = [bench.row(method, measured[method], measured[methods[0]]) for method in methods]
    return MethodTable(rows, table(rows, len(jobs)))
