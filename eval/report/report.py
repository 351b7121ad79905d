"""The report: one HTML file that needs nothing else, for a desk, a phone and paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from eval.report.pictures import acceptance_map, difference, thumbnail
from eval.report.plots import speed_plot, tau_plot
from eval.report.run import Run
from eval.report.speed import SpeedRow
from eval.report.summary import summary_line
from eval.report.tables import settings_table
from support.tables import Table

PAPER_NOTE = (
    "The paper's figures are its own (arXiv 2512.21857): Anole, an unnamed machine, "
    "its own plain decoding as 1.00."
)
SPEED_NOTE = (
    "SR: seconds of the baseline / seconds, over images with the same prompt and seed; image "
    "decoding is not counted. The baseline is a run of the same model and sampling distribution; "
    "-: none; (!): on another machine or batch size, or above tau, see the remarks. tau: mean "
    "tokens per verification round, the bonus token included, the prefill's token not. In "
    "brackets: 95 % intervals over images. Relaxed runs draw other images than plain decoding: "
    "their speed has a price."
)
IMAGES_NOTE = (
    "↑, ↓: more, or less, is better. In brackets: the interval that is named below; (!): a warning "
    "there. Differences to the baseline are over the same images."
)
Key = tuple[str, int]  # prompt and seed
Maps = Mapping[str, Mapping[str, np.ndarray]]  # run, image id -> accepted lengths (rows, columns)


@dataclass(frozen=True)
class Picture:
    """A picture as a data URI, with the text that stands below it."""

    source: str
    caption: str


@dataclass(frozen=True)
class Example:
    """A prompt and seed with the pictures of all runs."""

    prompt: str
    seed: int
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Findings:
    """What an evaluation has found, for the report.

    Attributes:
        runs: the runs, in the order of the tables.
        rows: the speed of each run.
        tables: speed, images, sources.
        remarks: warnings, and what was not computed.
    """

    runs: Sequence[Run]
    rows: Sequence[SpeedRow]
    tables: Sequence[Table]
    remarks: Sequence[str]


def shown_keys(runs: Sequence[Run], images: int) -> list[Key]:
    """Return the first prompts and seeds, those that most runs have before the others."""
    keys = list(dict.fromkeys(key for run in runs for key in run.by_image))
    return sorted(keys, key=lambda key: -sum(key in run.by_image for run in runs))[:images]


def report(found: Findings, keys: Sequence[Key], maps: Maps) -> str:
    """Return the page: tables, plots, remarks, the images of `keys` by all runs, settings."""
    speed, images, sources = found.tables
    settings, shared = settings_table(found.runs)
    paper = any(row.paper for row in found.rows)
    return _environment().get_template("report.html").render(
        names=", ".join(run.name for run in found.runs),
        lines=[summary_line(row) for row in found.rows],
        speed=speed,
        speed_note=f"{SPEED_NOTE} {PAPER_NOTE}" if paper else SPEED_NOTE,
        plots=_plots(found),
        images=images,
        images_note=IMAGES_NOTE,
        remarks=found.remarks,
        examples=[_example(found, key, maps) for key in keys],
        sources=sources,
        settings=settings,
        several=len(found.runs) > 1,
        shared_settings=shared,
    )  # fmt: skip


def _environment() -> Environment:
    """Return jinja's environment; every value is escaped, and a name that is not given raises."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["breakable"] = lambda text: escape(text).replace("_", Markup("_<wbr>"))
    return environment


def _plots(found: Findings) -> list[Markup]:
    seconds = ", ".join(f"{row.run} {row.seconds:.3g}" for row in found.rows)
    taus = ", ".join(f"{row.run} {row.tau:.2f}" for row in found.rows)
    return [
        speed_plot(found.rows, f"Seconds per image: {seconds}"),
        tau_plot(found.runs, f"Tokens per round (tau), over all images: {taus}"),
    ]


def _example(found: Findings, key: Key, maps: Maps) -> Example:
    named = {run.name: run for run in found.runs}
    pictures = [
        picture
        for run, row in zip(found.runs, found.rows, strict=True)
        if key in run.by_image
        for picture in _pictures(run, key, named.get(row.baseline), maps[run.name])
    ]
    return Example(*key, tuple(pictures))


def _pictures(
    run: Run, key: Key, baseline: Run | None, maps: Mapping[str, np.ndarray]
) -> list[Picture]:
    """Return a run's image, its difference to the baseline where it may differ, and its map."""
    record = run.by_image[key]
    with Image.open(run.path(record)) as image:
        image.load()
    caption = f"{run.name}: {record['seconds']:.3g} s, tau {record['tau']:.2f}"
    pictures = [Picture(thumbnail(image), caption)]
    other = None if baseline is run or run.same_tokens else baseline
    if other is not None and key in other.by_image:
        with Image.open(other.path(other.by_image[key])) as plain:
            apart = difference(image, plain)
        if apart is not None:
            caption = f"difference to {other.name}: {apart[1]:.1f} of 255 on average"
            pictures.append(Picture(apart[0], caption))
    if record["id"] in maps:
        caption = f"{run.name}: accepted lengths"
        pictures.append(Picture(acceptance_map(maps[record["id"]]), caption))
    return pictures
