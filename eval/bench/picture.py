"""The picture of a sweep: speed-up and tau by each of its axes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.figures import save_figure

Row = Mapping[str, Any]
LABELS = {"speedup": "speed-up over ar", "tau": "tau"}
# Swept numbers as the paper writes them, by flag.
SYMBOLS = {
    "adt_beta": r"$\beta$",
    "adt_l_d": r"$l_d$",
    "adt_l_k": r"$l_k$",
    "adt_d_min": r"$d_{min}$",
    "adt_d_max": r"$d_{max}$",
    "adt_k_min": r"$k_{min}$",
    "adt_k_max": r"$k_{max}$",
    "nodes": "draft tokens",
}
_DEPTH = "mean_drafted_depth"


def draw_speed(
    varied: Sequence[Row], others: Sequence[Row], axes: Sequence[str], output: Path
) -> None:
    """Draw speed above and tau below, a column per axis and one for the mean drafted depth.

    output: a file without its ending, for .png and .pdf.
    varied: the cells whose parameters, `axes`, the sweep varies: a point each, and a line joins the
    best of each value, without doubtful ones. others: dashed lines, and squares in the last column.
    """
    axes = [name for name in axes if len({row[name] for row in varied}) > 1]
    figure = Figure(figsize=(2.8 * len(axes) + 3.6, 5))
    panels = figure.subplots(2, len(axes) + 1, squeeze=False, sharex="col", sharey="row")
    for panel_row, figure_name in zip(panels, LABELS, strict=True):
        ends = any(row[f"{figure_name}_low"] for row in varied)
        panel_row[0].set_ylabel(LABELS[figure_name] + (" (95 %)" if ends else ""))
        heights = [row[figure_name] for row in varied]
        for panel, name in zip(panel_row, axes, strict=False):
            _points(panel, varied, name, figure_name)
        panel_row[-1].plot(
            [row[_DEPTH] for row in varied], heights, "o", alpha=0.35, color="tab:blue"
        )
        for number, row in enumerate(others, 2):
            for panel in panel_row[:-1]:
                panel.axhline(row[figure_name], ls="--", lw=1, color=f"C{number}")
            panel_row[-1].plot(
                row[_DEPTH], row[figure_name], "s", color=f"C{number}", label=row["cell"]
            )
    for panel in panels[0]:
        panel.axhline(1, lw=0.8, color="gray")  # as fast as ar
    for panel, name in zip(panels[1], [*axes, "mean drafted depth"], strict=True):
        panel.set_xlabel(SYMBOLS.get(name, name))
    if axes:
        panels[0, 0].legend(fontsize=6)
    if others:
        panels[0, -1].legend(fontsize=6)
    save_figure(figure, output)


def _points(panel: Axes, rows: Sequence[Row], name: str, figure: str) -> None:
    """Draw a figure by an axis' values, in the order of the file; a line joins the best of each."""
    order = list(dict.fromkeys(str(row[name]) for row in rows))
    xs = [order.index(str(row[name])) for row in rows]
    heights = [row[figure] for row in rows]
    panel.plot(xs, heights, "o", alpha=0.35, color="tab:blue", label="a cell")
    ends = [(row[f"{figure}_low"], row[f"{figure}_high"]) for row in rows]
    intervals = [(x, low, high) for x, (low, high) in zip(xs, ends, strict=True) if low]
    for x, low, high in intervals:
        panel.vlines(x, low, high, alpha=0.35, color="tab:blue")
    sure = [(x, row) for x, row in zip(xs, rows, strict=True) if not row["doubts"]]
    # relaxed cells only where no lossless one is sure
    joined = [pair for pair in sure if pair[1]["lossless"]] or sure
    best: dict[int, float] = {}
    for x, row in sorted(joined, key=lambda pair: (pair[0], pair[1][figure])):
        best[x] = row[figure]
    panel.plot(
        list(best), list(best.values()), "-", color="tab:blue", label="the best of each value"
    )
    panel.set_xticks(range(len(order)), order)
