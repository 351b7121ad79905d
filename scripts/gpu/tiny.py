"""Part 3: every method on the tiny model: tokens/s, tau, speed-up, images/s at several batches."""

from dataclasses import replace
from functools import partial

from configs.methods import MethodSettings
from eval.bench.benchmark import Bench, repeated
from runs.measure import BASELINE
from runs.session import Session
from scripts.gpu.checkpoint import KINDS, open_tiny, prompt_jobs
from scripts.gpu.methods import every_method, priced_methods, relaxed_methods
from scripts.gpu.options import Options
from scripts.gpu.record import Figures, Pieces, Skipped

_REPEATS = 2
_COLUMNS = (
    "tau", "tokens_per_second", "seconds_per_image", "speedup", "speedup_low", "speedup_high",
    "doubts", "mean_depth", "mean_nodes", "ms_per_target_forward", "ms_per_draft_forward",
    "overhead_share", "lossless", "identical", "near_ties", "wrong",
)  # fmt: skip


def pieces(options: Options) -> Pieces:
    """Return the measurements of this part by name, single images first."""
    nodes = options.sizes.nodes
    methods = every_method(nodes) | priced_methods() | relaxed_methods(nodes)
    return {
        f"{name}, batch {batch}{kind}": partial(measured, options, method, batch, compile)
        for batch in options.sizes.batches
        for kind, compile in KINDS.items()
        for name, method in methods.items()
    }


def measured(
    options: Options, method: MethodSettings, batch: int, compile: str | None = None
) -> Figures:
    """Decode in fp32, in turns with `ar`; return figures of `benchmark`, and `images_per_s`.

    Raises:
        Skipped: a relaxed rule, and the checkpoint has no table of nearest codes; or `compile`, one
            of KINDS, asks for what is not here.
    """
    session = open_tiny(options.model_path, "fp32", options.device, compile)
    session = replace(session, settings=replace(session.settings, batch_size=batch))
    if method.lantern is not None:
        _need_nearest(session, method)
    jobs = prompt_jobs(options.sizes.batches[batch])
    methods = tuple(dict.fromkeys((BASELINE, method)))
    found = repeated(session, methods, jobs, _REPEATS, warmup=batch)
    row = Bench(session, jobs, None).row(method, found[method], found[BASELINE])
    speed = {"images": len(jobs), "batch": batch, "images_per_s": 1 / row["seconds_per_image"]}
    return speed | {name: row[name] for name in _COLUMNS} | {"passed": not row["wrong"]}


def _need_nearest(session: Session, method: MethodSettings) -> None:
    try:
        session.tables(method)
    except ValueError as error:
        raise Skipped(str(error)) from error
