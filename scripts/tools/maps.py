"""Draw where an image accepts drafts, and correlate that with its neighbours.

`python -m scripts.tools.maps --run OUTPUT_DIR`, a run of `generate_images --trace` with drafts

Draws over the image's grid the accepted draft tokens of the round that decided each position, and
the target's top-1 probability there: mean.png for the mean over all images, <id>.png for a single
one, next to the image. Prints the correlations of neighbouring positions, and writes them to
correlations.json.

The acceptance of a position is the number of draft tokens accepted in the round that decided it,
without the bonus token. Position 0, which the prefill decides, has none; neither have the positions
of a round whose tree was cut by the image's end. A position is compared with

    previous      the position before it, also across the start of a row
    left          the same, within a row
    upper         the position above, unless the same round decided both
    other_image   control: the same position of another image (what all images have in common)
    elsewhere     control: another position of the same image (images that are easy all over)

on two levels. Image and position of the controls are random.

`rounds` takes the first position of every round and compares its acceptance with acceptances that
are known when its tree is planned. Here `previous` is the round before, and `left` is the same
wherever two rounds meet within a row. This is what an adaptive tree can use.

`positions` takes all positions, so a round counts once per token that it decided. Neighbours that
one round decided are equal by construction, so `left` says little about images here.

Partial correlations tell what one neighbour adds to the other. Trees that never change show the
target and the drafter alone; with ADT-Tree the tree, and so the acceptance, depends on the
neighbours itself.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image

from configs.fields import SettingsError
from eval.metrics.paired import Estimate, estimate
from eval.report.run import ImageTrace, grid_columns
from runs.run_files import RECORDS, TRACE
from support.durable import replace_file
from support.json_files import read_lines
from support.script import run_script
from support.tables import Table

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  the backend without a screen is chosen first

# name -> the variables whose correlation it is: the first two, given the third
PAIRS = {name: ("own", name) for name in ("previous", "left", "upper", "other_image", "elsewhere")}
PAIRS |= {
    "upper_given_left": ("own", "upper", "left"),
    "left_given_upper": ("own", "left", "upper"),
}
TITLES = ("accepted draft tokens", "target's top-1 probability")


def read_traces(run: Path) -> dict[str, ImageTrace]:
    """Return the traces of a run's images by id; images without a trace are left out.

    Raises:
        SettingsError: no image has a trace with accepted drafts, or one is damaged.
    """
    rounds = defaultdict(list)
    try:
        for entry in read_lines(run / TRACE):
            rounds[entry["id"]].append(entry)
        records = [record for record in read_lines(run / RECORDS) if record["id"] in rounds]
        traces = {
            record["id"]: ImageTrace.of(rounds[record["id"]], record["tokens"])
            for record in records
        }
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"--run {run}: found a damaged trace or record: {error!r}; allowed: a whole run"
        ) from error
    if not any(np.nanmax(trace.accepted) for trace in traces.values()):
        lacks = "no accepted drafts" if traces else "no images with a trace"
        raise SettingsError(
            f"--run {run}: found {lacks}; allowed: a run with --trace by a method that drafts"
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


@dataclass(frozen=True)
class Correlation:
    """Correlations over all pairs of positions of all images; the intervals are over images."""

    pairs: int
    pearson: Estimate
    spearman: Estimate


def correlations(
    traces: Sequence[ImageTrace], columns: int, samples: int = 2000
) -> dict[str, dict[str, Correlation | None]]:
    """Return all correlations, by level and by name of PAIRS.

    A correlation is None where it is not defined: for a constant, or too few images or pairs.

    Args:
        traces: of the images.
        columns: image tokens per row.
        samples: draws of images for the intervals.
    """
    draw = np.random.default_rng(0)
    order = draw.permutation(len(traces))
    partners = dict(zip(order, np.roll(order, 1), strict=True))  # another image, if there are two
    by_level: dict[str, dict[str, Correlation | None]] = {}
    for level in ("rounds", "positions"):
        rows = []
        for number, image in enumerate(traces):
            positions = image.starts if level == "rounds" else np.arange(1, len(image.rounds))
            rows.append(_variables(image, traces[partners[number]], positions, columns, draw))
        by_level[level] = {
            name: correlation([np.stack([row[key] for key in keys]) for row in rows], samples)
            for name, keys in PAIRS.items()
        }
    return by_level


def _variables(
    image: ImageTrace,
    other: ImageTrace,
    at: np.ndarray,
    columns: int,
    draw: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Return the acceptances (positions,) at some positions and of what they compare with."""
    values, rounds = image.whole, image.rounds
    above = np.maximum(at - columns, 0)  # position 0 has no acceptance
    random = draw.integers(1, len(values), len(at))
    return {
        "own": values[at],
        "previous": values[at - 1],
        "left": np.where(at % columns, values[at - 1], np.nan),
        "upper": np.where(rounds[above] != rounds[at], values[above], np.nan),
        "other_image": np.full(len(at), np.nan) if other is image else other.whole[at],
        "elsewhere": np.where(rounds[random] != rounds[at], values[random], np.nan),
    }


def correlation(variables: Sequence[np.ndarray], samples: int = 2000) -> Correlation | None:
    """Return the correlation of two variables, given a third if there is one.

    Args:
        variables: per image (2 or 3, pairs); columns with a NaN are left out.
        samples: draws of images for the intervals; ranks stay those of all pairs.
    """
    complete = [table[:, ~np.isnan(table).any(0)] for table in variables]
    values = np.concatenate(complete, axis=1)
    if values.shape[1] < 4 or np.ptp(values, axis=1).min() == 0:
        return None
    borders = np.cumsum([table.shape[1] for table in complete])[:-1]
    figures = []
    for table in (values, np.stack([_ranks(row) for row in values])):
        scaled = (table - table.mean(1, keepdims=True)) / table.std(1, keepdims=True)
        moments = np.stack([_moments(block) for block in np.split(scaled, borders, axis=1)])
        figures.append(
            estimate(
                lambda counts, m=moments: _partial(np.tensordot(counts, m, 1)),
                len(moments),
                samples,
            )
        )
    if np.isnan([figure.value for figure in figures]).any():
        return None
    return Correlation(values.shape[1], *figures)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks (n,) of values (n,); equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _moments(table: np.ndarray) -> np.ndarray:
    """Return the sums (1 + k, 1 + k) of products of every two of: one, the variables (k, pairs)."""
    extended = np.vstack([np.ones(table.shape[1]), table])
    return extended @ extended.T


def _partial(moments: np.ndarray) -> float:
    """Return the correlation of the first two variables, given the third if there is one.

    Args:
        moments: sums (1 + k, 1 + k) of `_moments`.
    """
    mean = moments[0, 1:] / moments[0, 0]
    covariance = moments[1:, 1:] / moments[0, 0] - np.outer(mean, mean)
    deviation = np.sqrt(covariance.diagonal())
    with np.errstate(divide="ignore", invalid="ignore"):
        r = covariance / np.outer(deviation, deviation)
        if len(r) == 2:
            return float(r[0, 1])
        return float(
            (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
        )


def table(by_level: dict[str, dict[str, Correlation | None]]) -> str:
    """Return the correlations in Markdown, with 95 % intervals over images."""
    rows = [
        (level, name, *_cells(one))
        for level, named in by_level.items()
        for name, one in named.items()
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
    by_level = correlations(list(traces.values()), columns)
    print(table(by_level), end="", flush=True)
    draw(tuple(values.mean(0) for values in stacked), columns, output / "mean.png")
    for name, trace in list(traces.items())[:images]:
        draw(
            (trace.accepted, trace.top1),
            columns,
            output / f"{name}.png",
            folder / "img" / f"{name}.png",
        )
    numbers = {
        level: {name: one and asdict(one) for name, one in named.items()}
        for level, named in by_level.items()
    }
    replace_file(
        output / "correlations.json",
        (json.dumps({"images": len(traces)} | numbers) + "\n").encode(),
    )
    print(f"{output}: maps of {len(traces)} images")


if __name__ == "__main__":
    run_script(maps)
