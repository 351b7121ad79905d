"""The image metrics of all runs on the same prompts and seeds, and their differences."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from configs.evaluation import EvaluateSettings
from eval.metrics.base import ImageSet, Score, Unavailable
from eval.metrics.intervals import Estimate, paired_difference
from eval.metrics.registry import METRICS, build_metric
from eval.metrics.store import FeatureStore
from eval.report.run import Run, common_images, read_reference
from support.devices import pick_device
from support.processes import ALONE, Processes

T = TypeVar("T")
Scores = dict[str, list[Score]]


def compute_scores(
    settings: EvaluateSettings,
    runs: Sequence[Run],
    tiny_reference: Callable[[Path], Path],
    processes: Processes = ALONE,
) -> tuple[Scores, list[str]]:
    """Return the scores of all runs, metric after metric, and what was not computed and why.

    tiny_reference: makes the tiny model's real images below a folder and returns theirs. processes:
    share the features among them.
    """
    tiny = all(run.settings["model"] == "tiny" for run in runs)
    names = settings.chosen_metrics("tiny" if tiny else "other")
    if not names:
        return {run.name: [] for run in runs}, []
    store = FeatureStore(settings.cache_dir, settings.batch_size, processes)
    device = pick_device(settings.device)
    images, remark = common_images(runs)
    remarks = [remark] if remark else []
    comparing = {name for name in names if METRICS[name].figure.needs_reference}
    real: ImageSet | Unavailable | None = None
    if comparing:
        real = _together(processes, lambda: _reference(settings, tiny, tiny_reference, processes))
    if isinstance(real, ImageSet):
        remarks += [f"{real.name}: left out {text}" for text in real.left_out]
    scores: Scores = {run.name: [] for run in runs}
    for name in names:
        theirs = real if name in comparing else None
        build = partial(build_metric, name, settings, store, device)
        metric = theirs if isinstance(theirs, Unavailable) else _together(processes, build)
        if isinstance(metric, Unavailable):
            remarks.append(f"{name} was not computed: {metric}")
            continue
        for image_set in images:
            try:
                scores[image_set.name] += map(_finite, metric.scores(image_set, theirs))
            except Unavailable as error:
                remarks.append(f"{name} of {image_set.name} was not computed: {error}")
    return scores, remarks


def with_prices(scores: Scores, baselines: Mapping[str, str]) -> Scores:
    """Return the scores with `price`, the difference to the run's baseline over the same images.

    Only scores that are shares get one. The shares of the single images are dropped.

    baselines: by run, another run that is lossless.
    """
    named = {run: {s.metric: s for s in run_scores} for run, run_scores in scores.items()}

    def price(run: str, score: Score) -> Estimate | None:
        plain = named.get(baselines.get(run), {}).get(score.metric)
        shares = [s.shares if s is not None else None for s in (score, plain)]
        if None in shares:
            return None
        ours, theirs = ([total for _, total in pairs] for pairs in shares)
        return paired_difference(*shares) if ours == theirs else None

    return {
        run: [replace(s, shares=None, price=price(run, s)) for s in run_scores]
        for run, run_scores in scores.items()
    }


def _reference(
    settings: EvaluateSettings,
    tiny: bool,
    tiny_reference: Callable[[Path], Path],
    processes: Processes,
) -> ImageSet:
    if settings.ref_dir is not None:
        return read_reference(settings.ref_dir)
    if not tiny:
        raise Unavailable("it compares with real images, but there is no --ref_dir")
    folder = Path(settings.cache_dir)
    if processes.rank == 0:
        tiny_reference(folder)
    processes.gather(None)  # it is rendered
    return read_reference(str(tiny_reference(folder)))


def _together(processes: Processes, work: Callable[[], T]) -> T | Unavailable:
    """Return the result of `work`; if any process lacks something for it, that, in all of them."""
    result, fault = None, None
    try:
        result = work()
    except Unavailable as error:
        fault = error
    # A process that went on alone would wait for the others at the next gather for ever.
    return next(filter(None, processes.gather(fault)), result)


def _finite(score: Score) -> Score:
    ends = (score.value, score.low, score.high)
    if all(math.isfinite(value) for value in ends if value is not None):
        return score
    interval = f"an interval from {score.low} to {score.high}"
    raise Unavailable(f"{score.metric} is {score.value}, with {interval}")
