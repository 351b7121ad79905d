"""One table of all drafters at equal numbers of draft tokens: tau, milliseconds, speed-ups.

`python -m scripts.tools.all_drafters --output work/all_drafters`

Every row is measured in turns with `ar`, image by image, and kept in <output>/sweep.jsonl, so the
same command continues where one stopped. <output>/costs.json, which is measured first, says what
the counts of a row promise. Heads of --heads have rows and costs of their own.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from configs.benchmarking import BenchmarkSettings
from configs.command_line import listed_method
from configs.fields import SettingsError
from configs.methods import MethodSettings
from configs.sampling import SamplingSettings
from configs.schema import RunSettings
from configs.sweep import Sweep
from eval.bench.benchmark import Bench, refuse_wrong
from eval.bench.machine import cpu_name
from eval.bench.sweep import measured_cells
from eval.bench.table import doubts, heading
from runs.costs import Costs
from scripts.tools.drafter_rows import Line, Part, parts_of
from support.durable import replace_file
from support.script import run_script
from support.tables import Table

Row = Mapping[str, Any]
TEMPERATURES = (1.0, 0.0)


def all_drafters(
    *,
    output: str = "work/all_drafters",
    prompt: str = "configs/prompts/tiny_test.txt",
    images: int = 16,
    methods: str | None = None,
    nodes: str | None = None,
    heads: str | None = None,
    model_path: str | None = None,
    dtype: str = "fp32",
) -> None:
    """Measure the rows that are not measured yet; write and print the table.

    Args:
        output: folder of table.md, table.json, costs.json and sweep.jsonl.
        prompt: file of prompts; guidance scale 3, seed 9.
        images: how many of them.
        methods: those whose rows are measured, by commas; all if None.
        nodes: 16, 58 or priced: rows of these budgets only, by commas; all if None.
        heads: name=folder of further drafters with weights, by commas; they have rows with 16
            draft tokens and priced ones.
        model_path: the target's folder; the shipped model if None.
        dtype: fp32, fp64 or bf16.
    """
    folder, rows = Path(output), []
    run = RunSettings(
        prompt=prompt,
        num_images=images,
        seed=9,
        model_path=model_path,
        dtype=dtype,
        method=MethodSettings("graft"),
    )
    parts = parts_of(methods, nodes, heads, folder)
    for temperature in TEMPERATURES:
        settings = _settings(
            replace(run, sampling=SamplingSettings(temperature=temperature)), parts[0].lines, folder
        )
        bench = Bench.open(settings)
        ready = [(part, *_opened(part, settings, bench)) for part in parts]  # all, before any row
        rows += [row for each in ready for row in _rows(*each)]
    dates = sorted({row["date"] for row in rows})
    where, *_ = heading(settings, bench.session.hardware(), cpu_name(), dates).split("; temp")
    text = f"{where}; {len(bench.jobs)} images\n{page(rows, len(bench.jobs))}"
    replace_file(folder / "table.json", (json.dumps({"rows": rows}) + "\n").encode())
    replace_file(folder / "table.md", text.encode())
    print(text, end="", flush=True)
    refuse_wrong(rows)


def _opened(
    part: Part, settings: BenchmarkSettings, bench: Bench
) -> tuple[BenchmarkSettings, Bench]:
    """Return the settings of a part's sweep, and what it is measured on: the same target."""
    if part.drafter is None:
        return settings, bench
    run = replace(settings.run, drafter_path=part.drafter)
    own = _settings(run, part.lines, Path(settings.output))
    try:
        session = replace(bench.session, drafter=None).with_settings(
            run.with_method(own.methods[0])
        )
    except ValueError as error:
        raise SettingsError(f"--heads: {error}") from error
    return own, replace(bench, session=session)


def _rows(part: Part, settings: BenchmarkSettings, bench: Bench) -> list[dict[str, Any]]:
    """Return the rows of a part; what is missing is measured, costs first."""
    if not part.costs.exists():
        print("measuring what rounds cost", file=sys.stderr, flush=True)
        bench.session.write_costs(part.costs)
    costs, found = Costs.read(part.costs), measured_cells(settings, bench)
    return [
        row | {"most_nodes": line.nodes, "drafts": line.name, "promised": costs.speedup(row)}
        for line, row in zip(part.lines, found, strict=True)
    ]


def _settings(run: RunSettings, lines: Sequence[Line], folder: Path) -> BenchmarkSettings:
    """Return the settings of a sweep over these lines."""
    entries = tuple(line.entry for line in lines)
    return BenchmarkSettings(
        run=run,
        methods=tuple(listed_method(entry, {}) for entry in entries),
        repeats=1,
        output=str(folder),
        sweep=Sweep("all_drafters", (), entries, (), None),
    )


def page(rows: Sequence[Row], images: int) -> str:
    """Return a table per temperature in Markdown, and why figures may be wrong."""
    parts = []
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        own = [row for row in rows if row["temperature"] == temperature]
        cells = [_plain(own, images), *(_cells(row, images) for row in own)]
        table = Table(tuple(cells[0]), tuple(tuple(line.values()) for line in cells))
        parts.append(f"\nT = {temperature:g}\n\n{table.markdown()}")
    found = [f"(!) {_name(row)}: {text}\n" for row in rows for text in doubts(row)]
    return "".join(parts) + ("\n" + "\n".join(found) if found else "")


def _name(row: Row) -> str:
    return f"{row['drafts']}, {row['most_nodes']}, T = {row['temperature']:g}"


def _plain(rows: Sequence[Row], images: int) -> dict[str, str]:
    """Return the cells of plain decoding: the medians of its measurements with all rows."""
    usual = {name: median(row["ar"][name] for row in rows) for name in ("seconds_per_image",)}
    times = {"round": median(row["ar"]["ms_per_round"]["round"] for row in rows), "draft": 0.0}
    found = rows[0]["ar"] | usual | {"ms_per_round": times, "drafts": "ar", "most_nodes": "0"}
    return _cells(found | {"promised": 1.0, "doubts": []}, images)


def _cells(row: Row, images: int) -> dict[str, str]:
    """Return a row's cells by column."""
    low, high = row["speedup_low"], row["speedup_high"]
    interval = "" if low is None or row["drafts"] == "ar" else f" ({low:.2f}-{high:.2f})"
    rounds = row["target_forwards"] - 1
    return {
        "drafts": row["drafts"],
        "most nodes": row["most_nodes"],
        "nodes": f"{row['mean_nodes']:.1f}",
        "levels": f"{row['levels'] / rounds:.1f}",
        "tau": f"{row['tau']:.2f}",
        "ms per draft": f"{row['ms_per_round']['draft']:.1f}",
        "ms per round": f"{row['ms_per_round']['round']:.1f}",
        "seconds per image": f"{row['seconds_per_image']:.2f}",
        "speed-up (95 %)": f"{row['speedup']:.2f}{interval}{' (!)' if doubts(row) else ''}",
        "by the costs": f"{row['promised']:.2f}",
        "same images": f"{row['identical']}/{images}",
    }


if __name__ == "__main__":
    run_script(all_drafters)
