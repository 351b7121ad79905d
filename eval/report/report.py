"""The report: one HTML file that needs nothing else, for a desk, a phone and paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from eval.report.pictures import acceptance_map, difference, speed_plot, tau_plot, thumbnail
from eval.report.run import Key, Run
from eval.report.speed import SpeedRow
from eval.report.tables import settings_table
from support.tables import Table

PAPER_NOTE = (
    "The paper's figures are its own (arXiv 2512.21857): Anole, an unnamed machine, "
    "its own plain decoding as 1.00."
)
Maps = Mapping[str, Mapping[str, np.ndarray]]  # run, image id -> accepted lengths (rows, columns)


class Picture(NamedTuple):
    """A picture as a data URI, with the text below it."""

    source: str
    caption: str


class Summary(NamedTuple):
    """A run's answers in words."""

    run: str
    fast: str
    same: str
    colour: str  # of `same`: good, bad or none


@dataclass(frozen=True)
class Findings:
    """The results of an evaluation, for the report."""

    runs: Sequence[Run]  # in the order of the tables
    rows: Sequence[SpeedRow]  # the speed of each run
    tables: Sequence[Table]  # speed, images, sources
    remarks: Sequence[str]  # warnings, and what was not computed


def shown_keys(runs: Sequence[Run], images: int) -> list[Key]:
    """Return the first prompts and seeds, those that most runs have before the others."""
    keys = list(dict.fromkeys(key for run in runs for key in run.by_image))
    return sorted(keys, key=lambda key: -sum(key in run.by_image for run in runs))[:images]


def report(findings: Findings, keys: Sequence[Key], maps: Maps) -> str:
    """Return the page: tables, plots, remarks, the images of `keys` by all runs, settings."""
    speed, images, sources = findings.tables
    settings, shared = settings_table(findings.runs)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,  # a name that is not given raises
        trim_blocks=True,
    )
    environment.filters["breakable"] = lambda text: escape(text).replace("_", Markup("_<wbr>"))
    return environment.get_template("report.html").render(
        names=", ".join(run.name for run in findings.runs),
        summaries=[summary(row) for row in findings.rows],
        speed=speed,
        paper_note=PAPER_NOTE if any(row.paper for row in findings.rows) else "",
        plots=_plots(findings),
        images=images,
        remarks=findings.remarks,
        examples=[_example(findings, key, maps) for key in keys],
        sources=sources,
        settings=settings,
        several=len(findings.runs) > 1,
        shared_settings=shared,
    )  # fmt: skip


def _plots(findings: Findings) -> list[Markup]:
    seconds = ", ".join(f"{row.run} {row.seconds:.3g}" for row in findings.rows)
    taus = ", ".join(f"{row.run} {row.tau:.2f}" for row in findings.rows)
    return [
        speed_plot(findings.rows, f"Seconds per image: {seconds}"),
        tau_plot(findings.runs, f"Tokens per round (tau), over all images: {taus}"),
    ]


def _example(findings: Findings, key: Key, maps: Maps) -> dict[str, object]:
    """Return a prompt and seed with the pictures of all runs."""
    named = {run.name: run for run in findings.runs}
    pictures: list[Picture] = []
    for run, row in zip(findings.runs, findings.rows, strict=True):
        if key in run.by_image:
            pictures += _pictures(run, key, named.get(row.baseline), maps[run.name])
    return {"prompt": key[0], "seed": key[1], "pictures": pictures}


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
        caption = f"{run.name}: accepted draft tokens"
        pictures.append(Picture(acceptance_map(maps[record["id"]]), caption))
    return pictures


def summary(row: SpeedRow) -> Summary:
    """Return a run's answers."""
    seconds = f"{row.seconds:.3g} s per image"
    if row.baseline == row.run:
        return Summary(row.run, f"{seconds}: the baseline", "the baseline", "")
    if row.speedup is None:
        nothing = "no baseline to compare with"
        return Summary(row.run, f"{seconds}; {nothing}", nothing, "")
    doubt = " (!)" if row.doubtful or row.above_tau else ""
    fast = f"speed-up {row.speedup.value:.2f} over {row.baseline}{doubt}; {seconds}"
    count = f"{row.identical} of {row.common} images identical to {row.baseline}'s"
    if not row.lossless:
        return Summary(row.run, fast, f"{count}; a relaxed rule, other images by design", "bad")
    if not row.same_tokens:
        return Summary(row.run, fast, f"{count}; other images of the same distribution", "")
    return Summary(row.run, fast, count, "good" if row.identical == row.common else "bad")
