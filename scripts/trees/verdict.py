"""Make the tables and the picture of docs/results/adt.md from traced runs.

`python -m scripts.trees.verdict --runs outputs/trees`

A folder of `runs` is a setting, a folder in it a row (scripts/trees/run.sh). Every round is priced
on every card by its own tree, and rows are compared with the paper's fixed tree image by image.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.metrics.intervals import paired_ratio
from scripts.gpu.count import count_rounds
from scripts.gpu.predict import GPUS, Prices, Pricing, open_narrow, round_prices, total_ms
from scripts.gpu.traces import TracedRun, read_trace
from support.durable import encode_json, new_file, replace_file
from support.script import run_script
from support.tables import Table

FIXED = "eagle2_d"  # rows of fixed trees, by depth
PAPERS = f"{FIXED}5"  # the paper's, with which all rows are compared
DRAWN = GPUS["h200"]
CARDS = [GPUS[name] for name in ("h100", "h200", "a100", "4090")]
FEW = 4  # rows of a setting that is not drawn
COLUMNS = 16  # of the included model's images
Setting = Mapping[str, TracedRun]  # by row


def verdict(
    *,
    runs: str,
    output: str = "docs/results/data/adt.json",
    picture: str = "docs/images/adt.png",
) -> None:
    """Print the tables as Markdown, and write them as JSON with the picture.

    Args:
        runs: folder of scripts/trees/run.sh.
        output: file of the tables.
        picture: file of tau over the milliseconds of a round.
    """
    settings = {folder.name: _rows(folder) for folder in sorted(Path(runs).iterdir())}
    with TemporaryDirectory() as folder:
        narrow = open_narrow("anole", None, Path(folder))
        price = round_prices(partial(count_rounds, *narrow, images=1))
        tables = [
            Table.of([_cells(row, rows[PAPERS], price) for row in rows.values()], name)
            for name, rows in settings.items()
        ]
        curves = {name: rows for name, rows in settings.items() if len(rows) > FEW}
        _draw(curves, price, Path(picture))
    for name, rows in settings.items():
        left, above = (locality(rows[PAPERS], distance) for distance in (1, COLUMNS))
        print(
            f"{name}: correlation with the round before {left:.2f}, with the one above {above:.2f}"
        )
    for table in tables:
        print(f"\n## {table.title}\n\n{table.markdown()}")
    replace_file(Path(output), encode_json({"tables": [vars(table) for table in tables]}))


def locality(run: TracedRun, distance: int) -> float:
    """Return how a round's accepted tokens correlate with those of the round that decided a token.

    distance: of that token from the round's first one: 1 for the left neighbour.
    """
    pairs = []
    for rounds in run.images.values():
        decided = {
            line["position"] + token: line["accepted"]
            for line in rounds
            for token in range(line["accepted"] + 1)
        }
        pairs += [
            (line["accepted"], decided[line["position"] - distance])
            for line in rounds
            if line["position"] - distance in decided
        ]
    return float(np.corrcoef(np.array(pairs).T)[0, 1])


def _rows(folder: Path) -> Setting:
    return {row.name: read_trace(str(row)) for row in sorted(folder.iterdir())}


def _cells(row: TracedRun, fixed: TracedRun, price: Pricing) -> dict[str, str]:
    """Return a row's figures, over the images that it shares with the paper's fixed tree.

    Of every card: the milliseconds of a round, and how many times as fast as that tree it is.
    """
    ids = row.images.keys() & fixed.images.keys()
    row, fixed = row.only(ids), fixed.only(ids)
    cells = {"row": row.name, "images": str(len(ids))} | row.cells()
    rounds = row.rounds(1)
    for gpu in CARDS:
        time = total_ms(rounds, gpu, price) / rounds.total()
        times = partial(_by_image, gpu=gpu, price=price)
        cells[gpu.name] = f"{time:.1f}: {paired_ratio(times(fixed), times(row)).words()}"
    return cells


def _by_image(run: TracedRun, gpu: Prices, price: Pricing) -> list[float]:
    """Return the milliseconds of every image."""
    return [total_ms(run.only([image]).rounds(1), gpu, price) for image in run.images]


def _draw(settings: Mapping[str, Setting], price: Pricing, output: Path) -> None:
    """Draw tau over the milliseconds of a round, a panel per setting."""
    figure = Figure(figsize=(3.2 * len(settings), 3.1))
    panels = figure.subplots(1, len(settings), squeeze=False)[0]
    for panel, (title, rows) in zip(panels, settings.items(), strict=True):
        shared = set.intersection(*(set(row.images) for row in rows.values()))
        _draw_panel(panel, [row.only(shared) for row in rows.values()], price)
        panel.set_title(f"{title}, {len(shared)} images", fontsize=8)
    panels[0].set_ylabel("tau", fontsize=7)
    named = panels[0].get_legend_handles_labels()
    figure.legend(*named, loc="lower center", ncols=3, fontsize=5)  # no point is under it
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    with new_file(output) as file:
        figure.savefig(file, format="png", dpi=110)


def _draw_panel(panel: Axes, rows: Sequence[TracedRun], price: Pricing) -> None:
    """Draw a line through the fixed trees, with its depths, and a point for every other row."""
    fixed: list[tuple[float, float]] = []
    for row in rows:
        rounds = row.rounds(1)
        point = total_ms(rounds, DRAWN, price) / rounds.total(), row.tau
        if row.name.startswith(FIXED):
            fixed.append(point)
            panel.annotate(row.name.removeprefix(FIXED), point, fontsize=7)
        else:
            panel.plot(*point, "s" if row.name == "adt" else ".", label=row.name)
    panel.plot(*zip(*fixed, strict=True), "o-", ms=3, color="gray", label="eagle2, by depth")
    panel.set_xlabel(f"predicted ms per round, {DRAWN.name}", fontsize=7)
    panel.tick_params(labelsize=7)


if __name__ == "__main__":
    run_script(verdict)
