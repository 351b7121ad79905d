"""`benchmark --sweep`: the methods of a grid, one after the other, each beside plain decoding.

A cell is measured as `benchmark` measures two methods, in alternating order with `ar`, so that a machine that is slower
for a while slows both. With `--costs` a cell is decoded once and its counts, which are the same on every machine and
under any load but for near-ties, promise a speed-up. A line of sweep.jsonl per cell: the same command continues.
"""

import json
import sys
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from configs.benchmarking import BenchmarkSettings
from configs.fields import SettingsError
from configs.schema import MethodSettings
from eval.bench.benchmark import Bench, exit_if_wrong, pairs, repeated
from eval.bench.sweep_figure import draw_quality, draw_speed
from eval.bench.table import table
from runs.costs import Costs
from runs.measure import BASELINE, measure
from support.durable import append_lines, encode_lines, replace_file
from support.json_files import read_lines
from support.provenance import identity, revision, versions

Row = dict[str, Any]
_SHARED = ("batch_size", "cfg_mode", "device_map")  # settings that change times, though not images


def run_sweep(settings: BenchmarkSettings) -> None:
    """Measure the cells that `<output_dir>/sweep.jsonl` lacks; draw all, print a table of them, best last, and one line
    of JSON."""
    costs = _costs(settings.costs)
    if costs:  # trees that weigh prices take these, not the machine's own
        methods = (
            replace(m, prices=settings.costs) if m.size == "priced" else m for m in settings.methods
        )
        settings = replace(settings, methods=tuple(methods))
    bench = Bench.open(settings)
    path = Path(settings.output) / "sweep.jsonl"
    known = {row["id"]: row for row in _mended(path)}
    rows = []
    for number, (cell, method) in enumerate(
        zip(settings.sweep.entries, settings.methods, strict=True), 1
    ):
        conditions = _conditions(settings, bench, method)
        key = sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]
        if key not in known:
            print(f"cell {number}/{len(settings.methods)}: {cell}", file=sys.stderr, flush=True)
            provenance = {"conditions": conditions, "versions": versions(), "revision": revision()}
            known[key] = {"id": key, "cell": cell} | _measured(settings, bench, method) | provenance
            append_lines(path, [known[key]])
        rows.append(
            known[key] | {"cell": cell} | ({"promised": costs.speedup(known[key])} if costs else {})
        )
    _report(settings, rows, "promised" if costs else "speedup")


def _report(settings: BenchmarkSettings, rows: list[Row], speed: str) -> None:
    """Pictures, table and the line of JSON; speed: the rows' key by which they are ordered."""
    folder, sweep = Path(settings.output), settings.sweep
    grid = [row for row in rows if row["cell"] in sweep.grid]
    beside = [row for row in rows if row["cell"] in sweep.beside]
    pictures = [draw_speed(grid, beside, sweep.axes, speed, folder / "speed.png")]
    pictures += [draw_quality(rows, speed, folder / "quality.png")] if settings.quality else []
    ordered = sorted(rows, key=lambda row: row[speed])
    hidden = ("method", "proposal", "verifier")  # the cell says them
    images = ordered[0]["conditions"]["images"]
    print(
        table([{name: row[name] for name in row if name not in hidden} for row in ordered], images)
    )
    files = [str(folder / "sweep.jsonl"), *map(str, pictures)]
    print(
        json.dumps({"best": ordered[-1]["cell"], speed: ordered[-1][speed], "files": files}),
        flush=True,
    )
    exit_if_wrong(rows)


def _measured(settings: BenchmarkSettings, bench: Bench, method: MethodSettings) -> Row:
    if settings.costs is not None:
        return bench.counts(method, measure(bench.session.engine_for(method), bench.jobs))
    runs = repeated(
        bench.session, (BASELINE, method), bench.jobs, settings.repeats, settings.warmup
    )
    return bench.row(method, runs[method], runs[BASELINE]) | {
        "interval": pairs([runs[BASELINE], runs[method]])[0]["seconds_ratio"],
        "ar": bench.row(BASELINE, runs[BASELINE], runs[BASELINE]),
    }


def _conditions(settings: BenchmarkSettings, bench: Bench, method: MethodSettings) -> Row:
    """All that a cell's figures depend on: its settings, the weights, the images, how and where it is measured."""
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


def _mended(path: Path) -> list[Row]:
    """The lines of earlier commands; a last one that was cut is taken out of the file."""
    try:
        rows = read_lines(path)
    except ValueError as error:
        raise SettingsError(
            f"--output_dir {path.parent}: found, in {path.name}, that {error}; allowed: another folder"
        ) from error
    if path.exists() and path.read_bytes() != encode_lines(rows):
        replace_file(path, encode_lines(rows))
    return rows


def _costs(path: str | None) -> Costs | None:
    try:
        return None if path is None else Costs.read(Path(path))
    except ValueError as error:
        raise SettingsError(f"--costs: {error}") from error
