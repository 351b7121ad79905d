"""`evaluate`: run folders in; tables, figures and a report out."""

import math
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, replace
from pathlib import Path

from configs.evaluation import METRICS, EvaluateSettings
from configs.fields import refuse, settings_dict
from eval.metrics.base import ImageSet, Score, Unavailable
from eval.metrics.intervals import Estimate, paired_difference
from eval.metrics.registry import build_metric
from eval.metrics.seconds import MetricSeconds
from eval.metrics.store import FeatureStore
from eval.metrics.weights import find_weights
from eval.report.report import PAPER_NOTE, Findings, report, shown_keys
from eval.report.run import (
    Run,
    common_images,
    common_keys,
    read_maps,
    read_reference,
    reference_files,
)
from eval.report.speed import SpeedRow, baseline_of, differing_distributions, speed_row
from eval.report.tables import metric_table, sources_table, speed_table
from runs.plan import Plan
from runs.samples import sample_reference
from support.devices import pick_device
from support.durable import encode_json, make_writable, replace_file
from support.processes import refuse_several
from support.progress import announce, plural
from support.provenance import revision, versions
from support.tables import Table

Scores = dict[str, dict[str, Score]]  # by run and metric
_SHOWN = 8  # remarks of a kind in the report and on the screen


def evaluate(settings: EvaluateSettings, runs: Sequence[Run]) -> None:
    """Compute what can be computed, print it and write it.

    The files are speed.*, images.*, sources.*, evaluation.json and report.html. Runs of the tiny
    model without --ref_dir are compared with rendered scenes. What cannot be computed is named on
    stderr and in the files. A SettingsError, before anything is computed, if a folder cannot be
    read or written.
    """
    refuse_several("evaluate")
    folder = report_of(settings, runs)
    make_writable("report_dir", folder)
    if settings.metrics != "none":
        make_writable("cache_dir", Path(settings.cache_dir))
    if settings.ref_dir is not None:
        reference_files(settings.ref_dir)
    check_pictures(settings, runs)
    images = plural(sum(len(run.images) for run in runs), "image")
    announce(f"evaluating {images} of {plural(len(runs), 'run')} into {folder}")
    rows = [speed_row(run, baseline_of(run, runs, settings.baseline)) for run in runs]
    scores, skipped = compute_scores(settings, runs)
    scores = with_prices(scores, _lossless_others(runs, rows))
    keys = shown_keys(runs, settings.images)
    maps, left_out = {}, {}
    for run in runs:
        shown = {run.by_image[key]["id"] for key in keys if key in run.by_image}
        maps[run.name], faults = read_maps(run, shown)
        left_out[run.name] = (*run.images.left_out, *faults)
    kinds = _remarks(left_out, rows, skipped)
    tables = [speed_table(rows), metric_table(scores, rows), sources_table(scores)]
    findings = Findings(runs, rows, tables, [text for kind in kinds for text in _capped(kind)])
    _tell(findings, scores)
    page = report(findings, keys, maps)
    document = _document(settings, findings, scores, [text for kind in kinds for text in kind])
    _write(folder, tables, document, page)
    print(f"{folder}/report.html, speed.md, images.md (.csv, .tex), evaluation.json")


def check_pictures(settings: EvaluateSettings, runs: Sequence[Run]) -> None:
    """Raise a SettingsError for metrics of a run whose image files show only tokens."""
    names = settings.chosen_metrics("other")
    tokens = [str(run.folder) for run in runs if not run.pictured]
    if names and tokens:
        wanted = f"none for {', '.join(tokens)}: img/*.png are tokens there, not pictures"
        refuse("metrics", ",".join(names), wanted, "docs/models.md says how to paint them.")


def _lossless_others(runs: Sequence[Run], rows: Sequence[SpeedRow]) -> dict[str, str]:
    """Return, by run, baselines that are another, lossless run; none if no image is in all runs."""
    lossless = {run.name for run in runs if run.lossless} if common_keys(runs) else set()
    return {row.run: row.baseline for row in rows if row.baseline in lossless - {row.run}}


def _remarks(
    left_out: Mapping[str, Sequence[str]], rows: Sequence[SpeedRow], skipped: list[str]
) -> list[list[str]]:
    """Return what is left out of each run, the warnings on speed, and the metrics skipped."""
    faults = [[f"{name}: left out {text}" for text in texts] for name, texts in left_out.items()]
    named = {f"{row.run}: {text}": text for row in rows for text in row.warnings}
    # what is said of the baseline is not said again of every run that is compared with it
    warnings = [remark for remark, text in named.items() if text not in named]
    differing = differing_distributions(rows)
    shown = [f"{run}: {', '.join(words.values())}" for run, words in differing.items() if words]
    if shown:
        warnings.append(f"different distributions are not to be compared: {'; '.join(shown)}")
    return [*faults, warnings, skipped]


def _capped(remarks: Sequence[str]) -> list[str]:
    """Return the first remarks of a kind, and how many more there are."""
    more = len(remarks) - _SHOWN
    rest = [f"{more} more of this kind; evaluation.json has them"] if more > 0 else []
    return [*remarks[:_SHOWN], *rest]


def _document(
    settings: EvaluateSettings, findings: Findings, scores: Scores, remarks: list[str]
) -> dict[str, object]:
    return {
        "settings": settings_dict(settings),
        "runs": list(map(_run_entry, findings.runs, findings.rows)),
        "speed": [asdict(row) for row in findings.rows],
        "images": {run: list(map(_score_entry, of_run.values())) for run, of_run in scores.items()},
        "remarks": remarks,
        "versions": versions(),
        "revision": revision(),
    }


def _score_entry(score: Score) -> dict[str, object]:
    return {name: value for name, value in asdict(score).items() if name != "shares"}


def _run_entry(run: Run, row: SpeedRow) -> dict[str, object]:
    names = ("settings", "identity", "hardware", "versions", "revision", "started")
    entry: dict[str, object] = {
        "name": run.name,
        "folder": "+".join(map(str, run.folders)),
        "baseline": row.baseline,
    }
    return entry | {name: run.manifest.get(name) for name in names}


def _write(folder: Path, tables: Sequence[Table], document: dict[str, object], page: str) -> None:
    for name, table in zip(("speed", "images", "sources"), tables, strict=True):
        table.write(f"{folder}/{name}")
    replace_file(folder / "evaluation.json", encode_json(document, indent=2))
    replace_file(folder / "report.html", page.encode())


def _tell(findings: Findings, scores: Scores) -> None:
    """Print the tables, the remarks (on stderr) and what was computed."""
    print("\n".join(table.markdown() for table in findings.tables[:2] if table.rows))
    all_scores = [score for of_run in scores.values() for score in of_run.values()]
    warnings = dict.fromkeys(f"{s.metric}: {s.warning}" for s in all_scores if s.warning)
    for text in (*findings.remarks, *warnings):
        print(f"note: {text}", file=sys.stderr)
    if any(row.paper for row in findings.rows):
        print(PAPER_NOTE)
    names = dict.fromkeys(score.metric.split(".")[0] for score in all_scores)
    print(f"computed: {', '.join(('speed', *names))}", flush=True)


def compute_scores(settings: EvaluateSettings, runs: Sequence[Run]) -> tuple[Scores, list[str]]:
    """Return the scores of all runs, metric after metric, and what was not computed and why."""
    scores: Scores = {run.name: {} for run in runs}
    tiny = all(run.settings["model"] == "tiny" for run in runs)
    names = settings.chosen_metrics("tiny" if tiny else "other")
    if not names:
        return scores, []
    store = FeatureStore(settings.cache_dir, settings.batch_size)
    device = pick_device(settings.device)
    images, remarks = common_images(runs)
    clock = MetricSeconds(store, device.type, sum(map(len, images)) + _real_images(settings))
    announce(clock.forecast(names))
    reference: ImageSet | None = None
    for name in names:
        try:
            if METRICS[name].needs_reference and reference is None:
                reference = _reference(settings, tiny)
                remarks += [f"{reference.name}: left out {text}" for text in reference.left_out]
            metric = build_metric(name, settings, store, device)
        except Exception as error:  # of any library: the other metrics and the tables remain
            remarks.append(f"{name} was not computed: {_words(error)}")
            continue
        with clock.timing(name):
            for image_set in images:
                try:
                    computed = map(_finite, metric.scores(image_set, reference))
                    scores[image_set.name] |= {score.metric: score for score in computed}
                except Exception as error:
                    remarks.append(f"{name} of {image_set.name} was not computed: {_words(error)}")
    return scores, remarks


def _real_images(settings: EvaluateSettings) -> int:
    """Return how many images of --ref_dir there are."""
    return 0 if settings.ref_dir is None else len(reference_files(settings.ref_dir))


def _words(error: Exception) -> str:
    """Return why a metric could not be computed; of errors that are not ours with their kind."""
    text = " ".join(str(error).split())
    return text if isinstance(error, Unavailable) else f"{type(error).__name__}: {text}"


def with_prices(scores: Scores, baselines: Mapping[str, str]) -> Scores:
    """Return the scores with `price`, the difference to the run's baseline over the same images.

    Only scores that are shares get one. The shares of the single images are dropped.

    baselines: by run, another run that is lossless.
    """

    def price(run: str, score: Score) -> Estimate | None:
        plain = scores.get(baselines.get(run) or "", {}).get(score.metric)
        if plain is None or score.shares is None or plain.shares is None:
            return None
        ours, theirs = ([total for _, total in pairs] for pairs in (score.shares, plain.shares))
        return paired_difference(score.shares, plain.shares) if ours == theirs else None

    return {
        run: {name: replace(s, shares=None, price=price(run, s)) for name, s in of_run.items()}
        for run, of_run in scores.items()
    }


def _reference(settings: EvaluateSettings, tiny: bool) -> ImageSet:
    if settings.ref_dir is not None:
        return read_reference(settings.ref_dir)
    if not tiny:
        raise Unavailable("it compares with real images, but there is no --ref_dir")
    return read_reference(str(sample_reference(Path(settings.cache_dir))))


def _finite(score: Score) -> Score:
    ends = (score.value, score.low, score.high)
    if all(math.isfinite(value) for value in ends if value is not None):
        return score
    interval = f"an interval from {score.low} to {score.high}"
    raise Unavailable(f"{score.metric} is {score.value}, with {interval}")


def plan_evaluation(settings: EvaluateSettings, runs: Sequence[Run]) -> Plan:
    """Return what `evaluate` would do."""
    check_pictures(settings, runs)
    if settings.ref_dir is not None:
        reference_files(settings.ref_dir)
    models = {run.settings["model"] for run in runs}
    names = settings.chosen_metrics("tiny" if models == {"tiny"} else "other")
    lacking = {name: _lacks(name, settings, models) for name in names}
    notes = [f"{name} would be skipped: {text}" for name, text in lacking.items() if text]
    folder = report_of(settings, runs)
    there = [name for name, text in lacking.items() if not text]
    count = sum(len(run.images) for run in runs)
    if there:
        store = FeatureStore(settings.cache_dir, settings.batch_size)
        looked, device = count + _real_images(settings), pick_device(settings.device)
        notes.append(MetricSeconds(store, device.type, looked).forecast(there))
    what = f"comparing the speed of {', '.join(run.name for run in runs)}, and computing "
    what += f"{', '.join(there) or 'no metric'} of their images; into {folder}"
    folders = {"report_dir": folder, "cache_dir": Path(settings.cache_dir)}
    return Plan(what, folders, 0, count, notes=notes)


def _lacks(name: str, settings: EvaluateSettings, models: Set[str]) -> str | None:
    """Return what a metric cannot be computed without; None if it can be."""
    entry = METRICS[name]
    if entry.needs_reference and settings.ref_dir is None and models != {"tiny"}:
        return "it needs real images; --ref_dir names them"
    try:
        if entry.flag is not None:
            find_weights(entry.flag, getattr(settings, entry.flag))
    except Unavailable as error:
        return str(error)
    return None


def report_of(settings: EvaluateSettings, runs: Sequence[Run]) -> Path:
    """Return the folder of the report."""
    return Path(settings.report_dir or runs[0].folder / "evaluation")
