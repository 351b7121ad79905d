"""`benchmark --sweep`: the cells of a sweep one after the other, each with plain decoding.

A cell is one method. It is measured as `benchmark` measures two methods, in alternating order with
`ar`, so that a machine that is slower for a while slows both. With --costs a cell is decoded once:
its counts, which but for near-ties are the same on every machine and under any load, promise a
speed-up. Each cell is a line of sweep.jsonl, so the same command continues where one stopped.
"""

import json
import sys
from dataclasses import asdict, replace
from datetime import date
from hashlib import sha256
from pathlib import Path

from configs.benchmarking import BenchmarkSettings
from configs.fields import SettingsError
from configs.schema import MethodSettings
from eval.bench.benchmark import Bench, Row, pairs, refuse_wrong, repeated
from eval.bench.machine import cpu_name
from eval.bench.sweep_figure import draw_quality, draw_speed
from eval.bench.table import heading, table
from runs.costs import Costs
from runs.measure import BASELINE, measure
from support.durable import append_lines, encode_lines, replace_file
from support.json_files import read_lines
from support.provenance import identity, revision, versions

_SHARED = (
    "batch_size",
    "cfg_mode",
    "device_map",
    "compile",
)  # settings that change times, though not images


def run_sweep(settings: BenchmarkSettings) -> None:
    """Measure the cells that `<output_dir>/sweep.jsonl` lacks; draw and print all of them.

    Prints a table, the best cell last, and one line of JSON.
    """
    costs = _read_costs(settings.costs)
    if costs:
        settings = _with_prices(settings, settings.costs)
    bench = Bench.open(settings)
    rows = measured_cells(settings, bench)
    if costs:
        rows = [row | {"promised": costs.speedup(row)} for row in rows]
    _report(settings, bench, rows, "promised" if costs else "speedup")


def measured_cells(settings: BenchmarkSettings, bench: Bench) -> list[Row]:
    """Return a row per cell; those that `<output>/sweep.jsonl` lacks are measured."""
    path = Path(settings.output) / "sweep.jsonl"
    known = {row["id"]: row for row in _mended(path)}
    rows = []
    cells = zip(settings.sweep.entries, settings.methods, strict=True)
    for number, (cell, method) in enumerate(cells, 1):
        conditions = _conditions(settings, bench, method)
        key = sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]
        if key not in known:
            print(f"cell {number}/{len(settings.methods)}: {cell}", file=sys.stderr, flush=True)
            provenance = _provenance(conditions)
            known[key] = {"id": key, "cell": cell} | _measured(settings, bench, method) | provenance
            append_lines(path, [known[key]])
        rows.append(known[key] | {"cell": cell})
    return rows


def _report(settings: BenchmarkSettings, bench: Bench, rows: list[Row], speed: str) -> None:
    """Draw the pictures; print the table, ordered by the column `speed`, and the line of JSON."""
    folder, sweep = Path(settings.output), settings.sweep
    varied = [row for row in rows if row["cell"] in sweep.varied]
    others = [row for row in rows if row["cell"] in sweep.others]
    pictures = [draw_speed(varied, others, sweep.axes, speed, folder / "speed.png")]
    pictures += [draw_quality(rows, speed, folder / "quality.png")] if settings.quality else []
    ordered = sorted(rows, key=lambda row: row[speed])
    dates = sorted({row["date"] for row in rows if "date" in row})
    print(heading(settings, bench.session.hardware(), cpu_name(), dates))
    print(table(ordered, len(bench.jobs)), end="")
    best, files = ordered[-1], [str(folder / "sweep.jsonl"), *map(str, pictures)]
    print(json.dumps({"best": best["cell"], speed: best[speed], "files": files}), flush=True)
    refuse_wrong(rows)


def _measured(settings: BenchmarkSettings, bench: Bench, method: MethodSettings) -> Row:
    """Return a cell's figures: its counts, or all that `benchmark` measures, with those of `ar`."""
    if settings.costs is not None:
        return bench.counts(method, measure(bench.session.open_engine(method), bench.jobs))
    found = repeated(
        bench.session, (BASELINE, method), bench.jobs, settings.repeats, settings.warmup
    )
    return bench.row(method, found[method], found[BASELINE]) | {
        "interval": pairs([found[BASELINE], found[method]])[0]["seconds_ratio"],
        "ar": bench.row(BASELINE, found[BASELINE], found[BASELINE]),
    }


def _conditions(settings: BenchmarkSettings, bench: Bench, method: MethodSettings) -> Row:
    """Return all that a cell's figures depend on.

    These are its settings, the weights, the images, and how and where it is measured.
    """
    jobs = json.dumps([asdict(job) for job in bench.jobs])
    shared = {name: getattr(settings.run, name) for name in _SHARED}
    timed = {
        "repeats": settings.repeats,
        "warmup": settings.warmup,
        "hardware": bench.session.hardware(),
    }
    return {
        **identity(settings.run.with_method(method)),
        **shared,
        "images": len(bench.jobs),
        "jobs": sha256(jobs.encode()).hexdigest()[:16],
        "quality": settings.quality,
        **(timed if settings.costs is None else {"counts": True}),
    }


def _provenance(conditions: Row) -> Row:
    return {
        "conditions": conditions,
        "versions": versions(),
        "revision": revision(),
        "date": date.today().isoformat(),
    }


def _mended(path: Path) -> list[Row]:
    """Return the lines of earlier commands; a last one that was cut is taken out of the file."""
    rows = read_lines(path)
    if path.exists() and path.read_bytes() != encode_lines(rows):
        replace_file(path, encode_lines(rows))
    return rows


def _read_costs(path: str | None) -> Costs | None:
    try:
        return None if path is None else Costs.read(Path(path))
    except ValueError as error:
        raise SettingsError(f"--costs: {error}") from error


def _with_prices(settings: BenchmarkSettings, costs: str) -> BenchmarkSettings:
    """Return settings whose trees that weigh prices take them from this file, not the machine."""
    methods = (
        replace(method, prices=costs) if method.size == "priced" else method
        for method in settings.methods
    )
    return replace(settings, methods=tuple(methods))
