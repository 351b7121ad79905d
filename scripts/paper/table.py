"""Join what `run.sh` measured, of several temperatures, models and prompts, into the paper's table:
`python -m scripts.paper.table outputs/paper/anole_coco outputs/paper/anole_parti`.

A speed-up is `benchmark`'s: methods in turns, with an interval, marked (!) where it is doubtful.
Depths are of the trees that were drafted, as in the paper; image figures are `evaluate`'s.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from configs.fields import refuse
from configs.model import TIMED
from eval.bench.table import speedup_words
from eval.metrics.intervals import Estimate
from runs.records import read_records
from support.durable import files_named
from support.json_files import read_object
from support.script import run_script
from support.tables import NONE, Table, number


def paper_table(*folders: str, output: str = "") -> None:
    """Print the table, and write it as Markdown, CSV and LaTeX.

    Args:
        folders: those that `scripts/paper/run.sh` wrote.
        output: where to write, without an ending; by default `table` in the first folder.
    """
    rows = [row for folder in folders for row in rows_of(Path(folder))]
    if not rows:
        refuse("folders", folders, "folders that scripts/paper/run.sh has filled")
    table, place = Table.of(rows), output or f"{folders[0]}/table"
    table.write(place)
    print(f"{table.markdown()}{place}.md, .csv, .tex")


def rows_of(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a folder by temperature; those not measured or evaluated yet are absent."""
    for place in files_named(folder, r"T[0-9.]+"):  # copies that users keep have other names
        report = place / "evaluation" / "evaluation.json"
        if not (report.exists() and (place / "benchmark.json").exists()):
            continue
        timed, judged = read_object(place / "benchmark.json"), read_object(report)
        for run, speed in zip(judged["runs"], judged["speed"], strict=True):
            row = next((row for row in timed["rows"] if _same(row, run["settings"])), None)
            yield _cells(run, speed, row, judged["images"].get(run["name"], []))


def _same(row: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether a row of a benchmark is of a run's method, which BATCH does not change."""
    shared = (row.keys() & settings.keys()) - TIMED.keys()
    return all(row[name] == settings[name] for name in shared)


def _cells(
    run: Mapping[str, Any],
    speed: Mapping[str, Any],
    row: Mapping[str, Any] | None,
    scores: list[dict[str, Any]],
) -> dict[str, str]:
    settings = run["settings"]
    records, _ = read_records(Path(run["folder"]))
    depths = [record["mean_drafted_depth"] for record in records.values()]
    return {
        "model": settings["model"],
        "prompts": Path(settings["prompt"]).stem,
        "T": f"{settings['temperature']:g}",
        "row": run["name"],
        "speed-up": NONE if row is None else speedup_words(row),
        "tau": f"{speed['tau']:.2f}",
        "drafted depth": f"{fmean(depths):.2f}",
        "images": str(speed["images"]),
        **{score["metric"]: _figure(score) for score in scores},
    }


def _figure(score: Mapping[str, Any]) -> str:
    words = Estimate(score["value"], score["low"], score["high"]).words(number)
    return words + (" (!)" if score["warning"] else "")


if __name__ == "__main__":
    run_script(paper_table)
