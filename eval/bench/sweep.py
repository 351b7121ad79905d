"""`benchmark --sweep`: the cells of a sweep one after the other, each with plain decoding.

A cell is one method. It is measured as `benchmark` measures two methods, in alternating order with
`ar`, so that a machine that is slower for a while slows both. Each cell is a line of sweep.jsonl,
so the same command continues where one stopped.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from hashlib import sha256
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from configs.benchmark import BenchmarkSettings
from configs.methods import MethodSettings
from configs.model import TIMED
from eval.bench.benchmark import Bench, Row, refuse_wrong
from eval.bench.table import best_of, doubts, heading, table
from runs.measure import BASELINE
from support.durable import append_lines, claim, make_writable, new_file, replace_file
from support.json_files import mended_lines
from support.output import printed_unless_saved
from support.processes import refuse_several
from support.progress import Progress, plural
from support.provenance import differing, revision, versions, with_hashes

_LATER = ("kernels", "processor")  # entries of the hardware that rows of earlier versions lack

LABELS = {"speedup": "speed-up over ar", "tau": "tau"}


def run_sweep(settings: BenchmarkSettings) -> None:
    """Measure the cells that `<output_dir>/sweep.jsonl` lacks; draw and print all of them.

    Prints a table, the best cell last, and one line of JSON, in which `best` is null if no lossless
    cell is faster than `ar` for certain.
    """
    refuse_several("benchmark")
    folder = Path(settings.output)
    make_writable("output_dir", folder)
    with claim(f"--output_dir {folder}", folder / "sweep.jsonl"):
        _run(settings, folder)


def _run(settings: BenchmarkSettings, folder: Path) -> None:
    cells, sweep = plural(len(settings.methods), "cell"), settings.sweep
    with Progress(f"measuring {cells}, each next to ar; to {settings.output}") as progress:
        bench = Bench.open(settings)
        rows = measured_cells(settings, bench, progress)
    best = best_of(rows)
    ordered = sorted(rows, key=lambda row: (row is best, row["speedup"]))
    dates = sorted({row["date"] for row in rows if "date" in row})
    text = heading(settings, bench.session.hardware(), dates) + "\n"
    text += table(ordered, len(bench.jobs)) + _older(ordered)
    print(text, end="", flush=True)
    replace_file(folder / "table.md", text.encode())
    varied, others = (
        [row for row in rows if row["cell"] in cells] for cells in (sweep.varied, sweep.others)
    )
    picture = folder / "speed.png"
    draw_speed(varied, others, sweep.axes, picture)
    files = [str(folder / name) for name in ("sweep.jsonl", "table.md", picture.name)]
    cell, speedup = (best["cell"], best["speedup"]) if best else (None, None)
    print(json.dumps({"best": cell, "speedup": speedup, "files": files}), flush=True)
    refuse_wrong(rows)


def measured_cells(settings: BenchmarkSettings, bench: Bench, progress: Progress) -> list[Row]:
    """Return a row per cell; those that `<output>/sweep.jsonl` lacks are measured."""
    path = Path(settings.output) / "sweep.jsonl"
    # wrong images are drawn again, since the cause may be mended
    hardware = bench.session.hardware()
    measured = {
        row["id"]: row
        for row in mended_lines(path)
        if not row.get("wrong") and not differing(row["conditions"]["hardware"], hardware)
    }
    conditions = [_conditions(settings, bench, method) for method in settings.methods]
    keys = [*map(_key, conditions)]  # the cells' ids in the file
    if all(key in measured for key in keys):  # doubtful cells are timed again when none is missing
        measured = {key: row for key, row in measured.items() if not doubts(row)}
    images = 2 * len(bench.jobs) * settings.repeats  # of a cell, by ar and its method
    progress.total = images * len(keys)
    progress.done = images * sum(key in measured for key in keys)
    rows = []
    cells = zip(settings.sweep.entries, settings.methods, keys, conditions, strict=True)
    for number, (cell, method, key, depends) in enumerate(cells, 1):
        if key not in measured:
            progress.note(f"cell {number}/{len(settings.methods)}: {cell}")
            times = settings.repeats, settings.warmup
            plain, drafted = bench.rows((BASELINE, method), *times, progress)
            measured[key] = {
                "id": key,
                "cell": cell,
                **drafted,
                "ar": plain,
                "conditions": depends,
                "versions": versions(),
                "revision": revision(),
                "date": date.today().isoformat(),
            }
            with printed_unless_saved(measured[key]):
                append_lines(path, [measured[key]])
        # the file's rows may have the cell by another spelling
        rows.append(measured[key] | {"cell": cell})
    return rows


def _conditions(settings: BenchmarkSettings, bench: Bench, method: MethodSettings) -> Row:
    """Return all that a cell's figures depend on: settings, weights, images, and the machine."""
    return {
        **with_hashes(settings.run.with_method(method).identity()),
        **{name: getattr(settings.run, name) for name in TIMED},
        "images": len(bench.jobs),
        "jobs": sha256(json.dumps(list(map(asdict, bench.jobs))).encode()).hexdigest()[:16],
        "quality": False,  # in the rows of earlier versions, which are found by all of this
        "repeats": settings.repeats,
        "warmup": settings.warmup,
        "hardware": bench.session.hardware(),
    }


def _older(rows: Sequence[Row]) -> str:
    """Return a remark per revision or versions, other than these, of cells measured earlier."""
    here = {"revision": revision(), **versions()}
    cells: dict[str, list[str]] = {}  # by what differs
    for row in rows:
        there = {"revision": row.get("revision"), **row.get("versions", {})}
        names = [n for n in differing(there, here) if None not in (there[n], here[n])]
        if names:
            words = ", ".join(f"{name} {there[name]}, here {here[name]}" for name in names)
            cells.setdefault(words, []).append(row["cell"])
    return "".join(f"(!) {'; '.join(of)}: measured by {words}\n" for words, of in cells.items())


def _key(conditions: Row) -> str:
    """Return a hash of a cell's conditions, without what earlier versions did not write."""
    hardware = {name: v for name, v in conditions["hardware"].items() if name not in _LATER}
    text = json.dumps(conditions | {"hardware": hardware}, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


def draw_speed(
    varied: Sequence[Row], others: Sequence[Row], axes: Sequence[str], output: Path
) -> None:
    """Draw speed above and tau below, a column per axis and one for the mean number of nodes.

    varied: the cells whose parameters, `axes`, the sweep varies: a point each, and a line joins the
    best of each value, without doubtful ones. others: dashed lines, and squares in the last column.
    """
    axes = [name for name in axes if len({row[name] for row in varied}) > 1]
    figure = Figure(figsize=(2.8 * len(axes) + 3.6, 5))
    panels = figure.subplots(2, len(axes) + 1, squeeze=False, sharex="col", sharey="row")
    for panel_row, figure_name in zip(panels, LABELS, strict=True):
        panel_row[0].set_ylabel(LABELS[figure_name])
        heights = [row[figure_name] for row in varied]
        for panel, name in zip(panel_row, axes, strict=False):
            _points(panel, varied, name, figure_name)
        panel_row[-1].plot([row["mean_nodes"] for row in varied], heights, "o", color="tab:orange")
        for number, row in enumerate(others, 2):
            for panel in panel_row[:-1]:
                panel.axhline(row[figure_name], ls="--", lw=1, color=f"C{number}")
            panel_row[-1].plot(
                row["mean_nodes"], row[figure_name], "s", color=f"C{number}", label=row["cell"]
            )
    for panel, name in zip(panels[1], [*axes, "mean nodes"], strict=True):
        panel.set_xlabel(name)
    if others:
        panels[0, -1].legend(fontsize=6)
    figure.tight_layout()
    with new_file(output) as file:
        figure.savefig(file, format="png", dpi=110)


def _points(panel: Axes, rows: Sequence[Row], name: str, figure: str) -> None:
    """Draw a figure by an axis' values, in the order of the file; a line joins the best of each."""
    order = list(dict.fromkeys(str(row[name]) for row in rows))
    places = [order.index(str(row[name])) for row in rows]
    panel.plot(places, [row[figure] for row in rows], "o", alpha=0.35, color="tab:blue")
    sure = [(place, row) for place, row in zip(places, rows, strict=True) if not doubts(row)]
    # relaxed cells only where no lossless one is sure
    joined = [pair for pair in sure if pair[1]["lossless"]] or sure
    best: dict[int, float] = {}
    for place, row in sorted(joined, key=lambda pair: (pair[0], pair[1][figure])):
        best[place] = row[figure]
    panel.plot(list(best), list(best.values()), "-", color="tab:blue")
    panel.set_xticks(range(len(order)), order)
