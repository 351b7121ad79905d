"""Draw where an image accepts drafts, and correlate that with its neighbours.

`python -m scripts.tools.maps --run OUTPUT_DIR`, a run of `generate_images --trace` with drafts

Draws over the image's grid the accepted draft tokens of the round that decided each position, and
the target's top-1 probability there: mean.png for the mean over all images, <id>.png for a single
one, next to the image. Prints the correlations that `eval.report.adjacency` defines and writes them
to correlations.json.
"""

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image

from configs.fields import SettingsError
from eval.metrics.paired import Estimate
from eval.report.adjacency import Correlation, ImageTrace, correlations, grid_columns
from support.durable import replace_file
from support.json_files import read_lines
from support.script import run_script
from support.tables import Table

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  the backend without a screen is chosen first

TITLES = ("accepted draft tokens", "target's top-1 probability")


def read_traces(run: Path) -> dict[str, ImageTrace]:
    """Return the traces of a run's images by id; images without a trace are left out.

    Raises:
        SettingsError: no image has a trace with accepted drafts, or one is damaged.
    """
    lines = defaultdict(list)
    try:
        for line in read_lines(run / "trace.jsonl"):
            lines[line["id"]].append(line)
        records = [record for record in read_lines(run / "records.jsonl") if record["id"] in lines]
        traces = {
            record["id"]: ImageTrace.of(lines[record["id"]], record["tokens"]) for record in records
        }
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"--run {run}: found a damaged trace or record: {error!r}; allowed: a whole run"
        ) from error
    if not any(np.nanmax(trace.accepted) for trace in traces.values()):
        found = "no accepted drafts" if traces else "no images with a trace"
        raise SettingsError(
            f"--run {run}: found {found}; allowed: a run with --trace by a method that drafts"
        )
    return traces


def columns_of(run: Path, traces: dict[str, ImageTrace]) -> int:
    """Return the image tokens per row, from the shape of the first picture.

    Raises:
        SettingsError: the images have different sizes.
    """
    lengths = {len(trace.rounds) for trace in traces.values()}
    with Image.open(run / "img" / f"{next(iter(traces))}.png") as picture:
        size = picture.size
    if len(lengths) > 1:
        raise SettingsError(f"--run {run}: found images of several sizes; allowed: one")
    try:
        return grid_columns(lengths.pop(), size)
    except ValueError as error:
        raise SettingsError(f"--run {run}: {error}; allowed: a whole run") from error


def draw(
    maps: tuple[np.ndarray, np.ndarray], columns: int, output: Path, picture: Path | None = None
) -> None:
    """Draw accepted tokens and top-1 probabilities, (tokens,) each, next to the image if given."""
    figure, panels = plt.subplots(1, 3 if picture else 2, figsize=(12 if picture else 8, 3.6))
    if picture:
        panels[0].imshow(Image.open(picture))
    for panel, values, title in zip(panels[-2:], maps, TITLES, strict=True):
        figure.colorbar(panel.imshow(values.reshape(-1, columns), vmin=0), ax=panel)
        panel.set_title(title, fontsize=9)
    for panel in panels:
        panel.set_axis_off()
    figure.tight_layout()
    figure.savefig(output, dpi=110)
    plt.close(figure)


def table(found: dict[str, dict[str, Correlation | None]]) -> str:
    """Return the correlations in Markdown, with 95 % intervals over images."""
    rows = [
        (level, name, *_cells(one)) for level, named in found.items() for name, one in named.items()
    ]
    return Table(("level", "with", "pairs", "Pearson", "Spearman"), tuple(rows)).markdown()


def _cells(one: Correlation | None) -> tuple[str, str, str]:
    return (str(one.pairs), _shown(one.pearson), _shown(one.spearman)) if one else ("-",) * 3


def _shown(one: Estimate) -> str:
    interval = "" if one.low is None else f" [{one.low:.3f}, {one.high:.3f}]"
    return f"{one.value:.3f}{interval}"


def maps(*, run: str, output_dir: str | None = None, images: int = 4) -> None:
    """Draw the maps and print the correlations of a run.

    Args:
        run: its folder.
        output_dir: where pictures and numbers go; <run>/maps if None.
        images: how many single images are drawn.
    """
    folder = Path(run)
    traces = read_traces(folder)
    columns = columns_of(folder, traces)
    output = folder / "maps" if output_dir is None else Path(output_dir)
    output.mkdir(parents=True, exist_ok=True)
    stacked = [
        np.stack([getattr(trace, name) for trace in traces.values()])
        for name in ("accepted", "top1")
    ]
    draw(tuple(values.mean(0) for values in stacked), columns, output / "mean.png")
    for name, trace in list(traces.items())[:images]:
        draw(
            (trace.accepted, trace.top1),
            columns,
            output / f"{name}.png",
            folder / "img" / f"{name}.png",
        )
    found = correlations(list(traces.values()), columns)
    numbers = {
        level: {name: one and asdict(one) for name, one in named.items()}
        for level, named in found.items()
    }
    replace_file(
        output / "correlations.json",
        (json.dumps({"images": len(traces)} | numbers) + "\n").encode(),
    )
    print(table(found), end="")
    print(f"{output}: maps of {len(traces)} images")


if __name__ == "__main__":
    run_script(maps)
