"""Pictures of a sweep: speed and tau by parameter and mean nodes; speed against quality."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from eval.bench.benchmark import Row
from eval.bench.quality import QUALITIES
from support.durable import new_file

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  the backend without a screen is chosen first
from matplotlib.axes import Axes  # noqa: E402

LABELS = {
    "speedup": "speed-up over ar",
    "promised": "speed-up that the costs promise",
    "tau": "tau",
}


def draw_speed(
    varied: Sequence[Row], others: Sequence[Row], axes: Sequence[str], speed: str, output: Path
) -> Path:
    """Draw speed above and tau below, a column per axis and one for the mean number of nodes.

    Args:
        varied: the cells whose parameters the sweep varies: a point each, and a line joins the best
            of each value.
        others: the cells compared with them: dashed lines, and squares in the last column.
        axes: the parameters that are varied.
        speed: the figure to draw, a key of LABELS.
        output: the picture, which is also returned.
    """
    axes = [name for name in axes if len({row[name] for row in varied}) > 1]
    size = (2.8 * len(axes) + 3.6, 5)
    figure, panels = plt.subplots(
        2, len(axes) + 1, figsize=size, squeeze=False, sharex="col", sharey="row"
    )
    for line, measure in zip(panels, (speed, "tau"), strict=True):
        line[0].set_ylabel(LABELS[measure])
        heights = [row[measure] for row in varied]
        for panel, name in zip(line, axes, strict=False):
            _points(panel, [str(row[name]) for row in varied], heights)
        line[-1].plot([row["mean_nodes"] for row in varied], heights, "o", color="tab:orange")
        for number, row in enumerate(others, 2):
            for panel in line[:-1]:
                panel.axhline(row[measure], ls="--", lw=1, color=f"C{number}")
            place = (row["mean_nodes"], row[measure])
            line[-1].plot(*place, "s", color=f"C{number}", label=row["cell"])
    for panel, name in zip(panels[1], [*axes, "mean nodes"], strict=True):
        panel.set_xlabel(name)
    if others:
        panels[0, -1].legend(fontsize=6)
    return _save(figure, output)


def _points(panel: Axes, values: Sequence[str], heights: Sequence[float]) -> None:
    """Draw heights by value, in the order of the sweep's file; a line joins the best of each."""
    order = list(dict.fromkeys(values))
    best = [max(h for v, h in zip(values, heights, strict=True) if v == value) for value in order]
    panel.plot([order.index(value) for value in values], heights, "o", alpha=0.35, color="tab:blue")
    panel.plot(range(len(order)), best, "-", color="tab:blue")
    panel.set_xticks(range(len(order)), order)


def draw_quality(rows: Sequence[Row], speed: str, output: Path) -> Path:
    """Draw speed against the shares of right backgrounds, colours and shapes; return the picture.

    Lossless methods are hollow. Plain decoding, where it was timed with the cells, is a cross at 1.
    """
    figure, panels = plt.subplots(
        1, len(QUALITIES), figsize=(4 * len(QUALITIES), 3.8), squeeze=False, sharey="row"
    )
    for panel, name in zip(panels[0], QUALITIES, strict=True):
        for row in rows:
            fill = "none" if row["lossless"] else "tab:blue"
            panel.plot(row[name], row[speed], "o", mec="tab:blue", mfc=fill)
            panel.annotate(row["cell"], (row[name], row[speed]), fontsize=5)
        if "ar" in rows[0]:
            panel.plot(rows[0]["ar"][name], 1, "x", color="black", label="ar")
            panel.legend()
        panel.set_xlabel(f"share of right {name}s")
    panels[0, 0].set_ylabel(LABELS[speed])
    return _save(figure, output)


def _save(figure: plt.Figure, output: Path) -> Path:
    figure.tight_layout()
    with new_file(output) as file:
        figure.savefig(file, format="png", dpi=110)
    plt.close(figure)
    return output
