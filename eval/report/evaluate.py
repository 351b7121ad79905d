"""`evaluate`: run folders in; tables, figures and a report out."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile

from configs.evaluation import EvaluateSettings
from configs.fields import refuse, settings_dict
from eval.metrics.base import Score
from eval.report.baselines import baseline_of
from eval.report.figures import Scores, compute_scores, with_prices
from eval.report.report import PAPER_NOTE, report, shown_keys
from eval.report.runs import Run, common_keys, reference_files
from eval.report.speed import SpeedRow, speed_row
from eval.report.tables import Table, metric_table, sources_table, speed_table
from eval.report.traces import accepted_lengths
from scenes.pictures import rendered_scenes
from support.durable import replace_file
from support.processes import launched
from support.provenance import revision, versions

_SHOWN = 8  # remarks of a kind on paper and screen


def evaluate(settings: EvaluateSettings, runs: Sequence[Run]) -> None:
    """Compute what can be computed, and write speed.*, images.*, evaluation.json and report.html.

    Runs of the tiny model without --ref_dir are compared with rendered scenes. What cannot be computed is named on
    stderr and in the files.

    Raises SettingsError, before anything is computed, for folders that cannot be read or written.
    """
    folder = Path(settings.report_dir or runs[0].folder / "evaluation")
    check_places(settings, folder)
    processes = launched()
    baselines = {run.name: baseline_of(run, runs, settings.baseline) for run in runs}
    rows = [speed_row(run, baselines[run.name]) for run in runs]
    scores, skipped = compute_scores(settings, runs, rendered_scenes, processes)
    if processes.rank > 0:
        return
    scores = with_prices(scores, _lossless_others(runs, rows))
    keys = shown_keys(runs, settings.images)
    read = {run.name: accepted_lengths(run, _ids(run, keys)) for run in runs}
    tables = [speed_table(rows), metric_table(scores, rows), sources_table(scores)]
    left_out = [(run.name, (*run.images.left_out, *read[run.name][1])) for run in runs]
    kinds = [[f"{name}: left out {text}" for text in texts] for name, texts in left_out]
    kinds += [[f"{row.run}: {text}" for row in rows for text in row.warnings], skipped]
    document = {
        "settings": settings_dict(settings),
        "runs": [_run_entry(run, row) for run, row in zip(runs, rows, strict=True)],
        "speed": [asdict(row) for row in rows],
        "images": {name: [_score_entry(score) for score in own] for name, own in scores.items()},
        "remarks": [text for kind in kinds for text in kind],
        "versions": versions(),
        "revision": revision(),
    }
    shown = [text for kind in kinds for text in _capped(kind)]
    page = report(runs, rows, tables, shown, keys, {name: maps for name, (maps, _) in read.items()})
    for name, table in zip(("speed", "images", "sources"), tables, strict=True):
        _write_table(folder / name, table)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(folder / "evaluation.json", text.encode())
    replace_file(folder / "report.html", page.encode())
    _tell(folder, tables, rows, scores, shown)


def check_places(settings: EvaluateSettings, report_dir: Path) -> None:
    """A SettingsError for a folder that cannot be written, and for a --ref_dir without images."""
    for flag, place in (("report_dir", report_dir), ("cache_dir", Path(settings.cache_dir))):
        try:
            place.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=place):
                pass
        except OSError as error:
            refuse(flag, str(place), f"a folder that can be written ({error.strerror})")
    if settings.ref_dir is not None:
        reference_files(settings.ref_dir)


def _lossless_others(runs: Sequence[Run], rows: Sequence[SpeedRow]) -> dict[str, str]:
    """The baselines of runs that have another one, which is lossless, by run; none unless all runs share images."""
    lossless = {run.name for run in runs if run.lossless} if common_keys(runs) else set()
    return {row.run: row.baseline for row in rows if row.baseline in lossless - {row.run}}


def _ids(run: Run, keys: Sequence[tuple[str, int]]) -> set[str]:
    return {run.by_image[key]["id"] for key in keys if key in run.by_image}


def _capped(remarks: Sequence[str]) -> list[str]:
    """The first remarks of a kind, and how many there are more."""
    more = len(remarks) - _SHOWN
    return [
        *remarks[:_SHOWN],
        *([f"{more} more like the last; evaluation.json has them"] if more > 0 else []),
    ]


def _score_entry(score: Score) -> dict[str, object]:
    return {name: value for name, value in asdict(score).items() if name != "shares"}


def _run_entry(run: Run, row: SpeedRow) -> dict[str, object]:
    names = ("settings", "identity", "hardware", "versions", "revision", "started")
    return {"name": run.name, "folder": str(run.folder), "baseline": row.baseline} | {
        name: run.manifest.get(name) for name in names
    }


def _write_table(path: Path, table: Table) -> None:
    for ending, text in ((".md", table.markdown()), (".csv", table.csv()), (".tex", table.latex())):
        replace_file(path.with_suffix(ending), text.encode())


def _tell(
    folder: Path,
    tables: Sequence[Table],
    rows: Sequence[SpeedRow],
    scores: Scores,
    remarks: Sequence[str],
) -> None:
    print("\n".join(table.markdown() for table in tables[:2] if table.rows))
    warnings = dict.fromkeys(
        f"{s.metric}: {s.warning}" for own in scores.values() for s in own if s.warning
    )
    for text in (*remarks, *warnings):
        print(f"note: {text}", file=sys.stderr)
    if any(row.paper for row in rows):
        print(PAPER_NOTE)
    names = dict.fromkeys(score.metric.split(".")[0] for own in scores.values() for score in own)
    print(f"computed: speed{''.join(f', {name}' for name in names)}")
    print(f"{folder}/report.html, speed.md, images.md (.csv, .tex), evaluation.json")
