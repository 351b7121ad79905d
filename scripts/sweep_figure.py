"""A picture of a sweep: `python -m scripts.sweep_figure --report work/sweep.jsonl --output sweep.png`.

One column per parameter that the cells vary, with the speed-up that the costs promise above and tau below; every cell
is a point, a line joins the best cells. The last column shows both against the mean number of nodes.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from configs.fields import refuse
from eval.durable import read_lines
from eval.script import run_script
from scripts.sweep import predicted, read_costs

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  the backend without a screen is chosen first

Point = tuple[str, float, float]  # the parameter's value, speed-up, tau


def settings_of(cell: str) -> dict[str, str]:
    """The parameters of a cell `method:flag=value:…`."""
    return dict(option.split("=") for option in cell.split(":")[1:])


def columns(rows: Sequence[dict], speedups: Sequence[float]) -> dict[str, list[Point]]:
    """The points of every parameter that has more than one value, in the order of its values."""
    found: dict[str, list[Point]] = {}
    for row, speedup in zip(rows, speedups, strict=True):
        for name, value in settings_of(row["cell"]).items():
            found.setdefault(name, []).append((value, speedup, row["tau"]))
    varied = {name: points for name, points in found.items() if len({value for value, *_ in points}) > 1}
    return {name: sorted(points, key=lambda point: _order(point[0])) for name, points in varied.items()}


def _order(value: str) -> tuple[float, str]:
    try:
        return float(value), value
    except ValueError:
        return float("inf"), value


def draw(rows: Sequence[dict], speedups: Sequence[float], output: Path, title: str) -> None:
    """Write the picture."""
    panels = columns(rows, speedups)
    figure, axes = plt.subplots(2, len(panels) + 1, figsize=(2.6 * len(panels) + 3.4, 5), squeeze=False, sharey="row")
    for column, (name, points) in enumerate(panels.items()):
        values = list(dict.fromkeys(value for value, *_ in points))
        for row in (0, 1):
            places = [values.index(point[0]) for point in points]
            heights = [point[1 + row] for point in points]
            best = [max(h for p, h in zip(places, heights, strict=True) if p == i) for i in range(len(values))]
            axes[row, column].plot(places, heights, "o", alpha=0.35, color="tab:blue")
            axes[row, column].plot(best, "-", color="tab:blue")
            axes[row, column].set_xticks(range(len(values)), values)
        axes[1, column].set_xlabel(name)
    nodes = [row["nodes"] for row in rows]
    axes[0, -1].plot(nodes, speedups, "o", color="tab:orange")
    axes[1, -1].plot(nodes, [row["tau"] for row in rows], "o", color="tab:orange")
    axes[1, -1].set_xlabel("mean nodes")
    axes[0, 0].set_ylabel("speed-up promised by the costs")
    axes[1, 0].set_ylabel("tau")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(output, dpi=110)
    plt.close(figure)


def sweep_figure(
    *, report: str = "work/sweep.jsonl", costs: str = "work/costs.json", output: str = "sweep.png"
) -> None:
    """Draw every run that a report holds, one picture each: output-1.png, … where there are several.

    Args:
        report: JSON lines of `scripts.sweep`.
        costs: file of `scripts.costs`.
        output: picture, by its ending PNG, PDF or SVG.
    """
    prices = read_costs(costs)
    runs: dict[str, list[dict]] = {}
    for row in read_lines(Path(report)):
        runs.setdefault(row["id"].removeprefix(row["cell"]).strip(), []).append(row)
    if not runs:
        refuse("report", report, "a file with the lines of a sweep")
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, (title, rows) in enumerate(runs.items(), 1):
        place = path if len(runs) == 1 else path.with_stem(f"{path.stem}-{number}")
        draw(rows, [predicted(row, prices) for row in rows], place, title)
        print(f"{place}: {len(rows)} cells, {title}")


if __name__ == "__main__":
    run_script(sweep_figure)
