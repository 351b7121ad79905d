"""`evaluate`: run folders in; tables, figures and a report out."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from configs.evaluation import EvaluateSettings
from configs.schema import settings_dict
from eval.devices import pick_device
from eval.durable import replace_file
from eval.metrics.base import ImageSet, Score, Unavailable
from eval.metrics.registry import NEED_REFERENCE, build_metric
from eval.metrics.store import FeatureStore
from eval.processes import ALONE, Processes, launched
from eval.provenance import revision, versions
from eval.report import PAPER_NOTE, report
from eval.runs import Run, read_reference
from eval.speed import SpeedRow, baseline_of, speed_row
from eval.tables import Table, metric_table, sources_table, speed_table

Scores = dict[str, list[Score]]


def evaluate(settings: EvaluateSettings, runs: Sequence[Run], tiny_reference: Callable[[Path], Path]) -> None:
    """Compute what can be computed, and write speed.*, images.*, evaluation.json and report.html.

    tiny_reference: gives a folder of rendered scenes, below the one it takes, for runs of the tiny model without
    --ref_dir. What cannot be computed is named on stderr and in the files.
    """
    processes = launched()
    baseline = baseline_of(runs, settings.baseline)
    rows = [speed_row(run, baseline) for run in runs]
    scores, skipped = compute_scores(settings, runs, tiny_reference, processes)
    if processes.rank > 0:
        return
    tables = [speed_table(rows), metric_table(scores, rows), sources_table(scores)]
    remarks = [*(f"{run.name}: left out {text}" for run in runs for text in run.images.left_out)]
    remarks += [f"{row.run}: {text}" for row in rows for text in row.warnings] + skipped
    folder = Path(settings.report_dir or runs[0].folder / "evaluation")
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in zip(("speed", "images", "sources"), tables, strict=True):
        _write_table(folder / name, table)
    document = {
        "settings": settings_dict(settings),
        "runs": [_run_entry(run, baseline) for run in runs],
        "speed": [asdict(row) for row in rows],
        "images": {name: [asdict(score) for score in own] for name, own in scores.items()},
        "remarks": remarks,
        "versions": versions(),
        "revision": revision(),
    }
    replace_file(folder / "evaluation.json", (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())
    replace_file(folder / "report.html", report(runs, rows, tables, remarks, settings.images).encode())
    _tell(folder, tables, rows, scores, remarks)


def compute_scores(
    settings: EvaluateSettings,
    runs: Sequence[Run],
    tiny_reference: Callable[[Path], Path],
    processes: Processes = ALONE,
) -> tuple[Scores, list[str]]:
    """The scores by run, metric after metric, and what was not computed and why; processes share the features."""
    tiny = all(run.settings["model"] == "tiny" for run in runs)
    store = FeatureStore(settings.cache_dir, settings.batch_size, processes)
    device = pick_device(settings.device)

    @cache
    def reference() -> ImageSet:
        if settings.ref_dir is None and not tiny:
            raise Unavailable("it compares with real images, but there is no --ref_dir")
        if settings.ref_dir is None and processes.rank == 0:
            tiny_reference(Path(settings.cache_dir))
        processes.gather(None)  # it is rendered
        real = read_reference(settings.ref_dir or str(tiny_reference(Path(settings.cache_dir))))
        skipped.extend(f"{real.name}: left out {text}" for text in real.left_out)
        return real

    scores: Scores = {run.name: [] for run in runs}
    skipped: list[str] = []
    for name in settings.chosen_metrics("tiny" if tiny else "other"):
        try:
            theirs = reference() if name in NEED_REFERENCE else None
            metric = build_metric(name, settings, store, device)
        except Unavailable as error:
            skipped.append(f"{name} was not computed: {error}")
            continue
        for run in runs:
            try:
                scores[run.name] += metric.scores(run.images, theirs)
            except Unavailable as error:
                skipped.append(f"{name} of {run.name} was not computed: {error}")
    return scores, skipped


def _run_entry(run: Run, baseline: Run | None) -> dict[str, object]:
    names = ("settings", "identity", "hardware", "versions", "revision", "started")
    return {"name": run.name, "folder": str(run.folder), "baseline": run is baseline} | {
        name: run.manifest.get(name) for name in names
    }


def _write_table(path: Path, table: Table) -> None:
    for ending, text in ((".md", table.markdown()), (".csv", table.csv()), (".tex", table.latex())):
        replace_file(path.with_suffix(ending), text.encode())


def _tell(
    folder: Path, tables: Sequence[Table], rows: Sequence[SpeedRow], scores: Scores, remarks: Sequence[str]
) -> None:
    print("\n".join(table.markdown() for table in tables[:2] if table.rows))
    warnings = dict.fromkeys(f"{s.metric}: {s.warning}" for own in scores.values() for s in own if s.warning)
    for text in (*remarks, *warnings):
        print(f"note: {text}", file=sys.stderr)
    if any(row.paper for row in rows):
        print(PAPER_NOTE)
    names = dict.fromkeys(score.metric.split(".")[0] for own in scores.values() for score in own)
    print(f"computed: speed{''.join(f', {name}' for name in names)}")
    print(f"{folder}/report.html, speed.md, images.md (.csv, .tex), evaluation.json")
