"""The report: one HTML file that needs nothing else, for a desk, a phone and paper."""

import base64
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageChops

from eval.report.run import Key, Run
from eval.report.speed import SpeedRow
from eval.report.tables import settings_table
from support.tables import Table

PAPER_NOTE = (
    "The paper's figures are its own (arXiv 2512.21857): Anole, an unnamed machine, "
    "its own plain decoding as 1.00."
)
_SIDE = 384  # pixels of a thumbnail's longer edge
_GAIN = 4  # differences are shown this much stronger
_INK = "#010203"  # stands for the page's colour until the SVG is written
_BAR = "#4477aa"  # seen on white and on black
_MEDIAN = "#dd7733"
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # a folder's name may have two $
    "font.family": "sans-serif",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
    **{f"boxplot.{stroke}props.color": _INK for stroke in ("box", "whisker", "cap")},
    "boxplot.medianprops.color": _MEDIAN,
}
Maps = Mapping[str, Mapping[str, np.ndarray]]  # run, image id -> accepted lengths (rows, columns)
Picture = tuple[str, str]  # a data URI, and the text below it


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
        plots=[speed_plot(findings.rows), tau_plot(findings)],
        images=images,
        remarks=findings.remarks,
        examples=[_example(findings, key, maps) for key in keys],
        sources=sources,
        settings=settings,
        several=len(findings.runs) > 1,
        shared_settings=shared,
    )  # fmt: skip


def _example(findings: Findings, key: Key, maps: Maps) -> dict[str, object]:
    """Return a prompt and seed with the pictures of all runs."""
    named = {run.name: run for run in findings.runs}
    pictures: list[Picture] = []
    for run, row in zip(findings.runs, findings.rows, strict=True):
        if key in run.by_image:
            pictures += _pictures(run, key, named.get(row.baseline or ""), maps[run.name])
    return {"prompt": key[0], "seed": key[1], "pictures": pictures}


def _pictures(
    run: Run, key: Key, baseline: Run | None, maps: Mapping[str, np.ndarray]
) -> list[Picture]:
    """Return a run's image, its difference to the baseline where it may differ, and its map."""
    record = run.by_image[key]
    with Image.open(run.files[record["id"]]) as image:
        image.load()
    caption = f"{run.name}: {record['seconds']:.3g} s, tau {record['tau']:.2f}"
    pictures = [(thumbnail(image), caption)]
    other = None if baseline is run or run.same_tokens else baseline
    if other is not None and key in other.by_image:
        with Image.open(other.files[other.by_image[key]["id"]]) as plain:
            apart = difference(image, plain)
        if apart is not None:
            caption = f"difference to {other.name}: {apart[1]:.1f} of 255 on average"
            pictures.append((apart[0], caption))
    if record["id"] in maps:
        caption = f"{run.name}: accepted draft tokens"
        pictures.append((acceptance_map(maps[record["id"]]), caption))
    return pictures


def summary(row: SpeedRow) -> Summary:
    """Return what the report's first table says of a run."""
    seconds = f"{row.seconds:.3g} s per image"
    if row.baseline == row.run:
        return Summary(row.run, f"{seconds}: the baseline", "the baseline", "")
    if row.speedup is None:
        nothing = "no baseline to compare with"
        return Summary(row.run, f"{seconds}; {nothing}", nothing, "")
    doubt = " (!)" if row.doubtful or row.spoilt else ""
    fast = f"speed-up {row.speedup.value:.2f} over {row.baseline}{doubt}; {seconds}"
    count = f"{row.identical} of {row.common} images identical to {row.baseline}'s"
    if not row.lossless:
        return Summary(row.run, fast, f"{count}; a relaxed rule, other images by design", "bad")
    if not row.same_tokens:
        return Summary(row.run, fast, f"{count}; other images of the same distribution", "")
    if row.inconclusive and row.identical == row.common:
        return Summary(row.run, fast, f"{count}, inconclusive: {row.inconclusive}", "")
    return Summary(row.run, fast, count, "good" if row.identical == row.common else "bad")


def speed_plot(rows: Sequence[SpeedRow]) -> Markup:
    """Return seconds per image as bars, with the speed-up where there is a baseline."""
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "speed"}):
        figure, axes = _axes(len(rows))
        axes.barh([row.run for row in rows], [row.seconds for row in rows], color=_BAR)
        for number, row in enumerate(rows):
            ratio = "" if row.speedup is None else f", speed-up {row.speedup.value:.2f}"
            end, gap = (row.seconds, number), (4, 0)
            text = f"{row.seconds:.3g} s{ratio}"
            axes.annotate(text, end, gap, textcoords="offset points", va="center", fontsize=9)
        axes.set(xlabel="seconds per image", xlim=(0, 1.75 * max(row.seconds for row in rows)))
        seconds = ", ".join(f"{row.run} {row.seconds:.3g}" for row in rows)
        return _svg(figure, f"Seconds per image: {seconds}")


def tau_plot(findings: Findings) -> Markup:
    """Return the tokens per round of the images: median, quartiles and range by run."""
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "tau"}):
        figure, axes = _axes(len(findings.runs))
        figures = [[record["tau"] for record in run.records.values()] for run in findings.runs]
        names = [run.name for run in findings.runs]
        axes.boxplot(
            figures, tick_labels=names, orientation="horizontal", whis=(0, 100), widths=0.6
        )
        axes.set(xlabel="tau: tokens per round, by image")
        taus = ", ".join(f"{row.run} {row.tau:.2f}" for row in findings.rows)
        return _svg(figure, f"Tokens per round (tau), over all images: {taus}")


def _axes(rows: int) -> tuple[Figure, Axes]:
    # not pyplot, which keeps every figure until it is closed
    figure = Figure(figsize=(4.8, 0.9 + 0.4 * rows), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    return figure, axes


def _svg(figure: Figure, caption: str) -> Markup:
    buffer = io.StringIO()
    # No date here and fixed salts above: the same figures give the same bytes.
    with warnings.catch_warnings():
        # text stays text, so the reader's fonts draw it; ours only measure it
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(
            buffer, format="svg", metadata={"Date": None}, bbox_inches="tight", transparent=True
        )
    text = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    text = re.sub(r"(?s)<metadata>.*?</metadata>", "", text)
    text = re.sub(r"<g id=\"[^\"]*\"", "<g", text)  # names would come twice, in two plots
    text = text.replace(_INK, "currentColor")
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1))


def thumbnail(image: Image.Image) -> str:
    """Return the image, at most 384 pixels on its longer edge, as a JPEG of high quality."""
    small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return _uri(small, "jpeg", quality=90)


def difference(image: Image.Image, lossless: Image.Image) -> tuple[str, float] | None:
    """Return 4 |image - lossless|, and the mean difference, of 255; None if their sizes differ."""
    if image.size != lossless.size:
        return None
    apart = ImageChops.difference(image.convert("RGB"), lossless.convert("RGB"))
    shown = apart.point(lambda level: min(_GAIN * level, 255))
    return thumbnail(shown), float(np.mean(np.asarray(apart)))


def acceptance_map(lengths: np.ndarray) -> str:
    """Return accepted lengths (rows, columns) as colours, from dark (0) to yellow (8 and more)."""
    shares = lengths / 8
    colours = matplotlib.colormaps["viridis"](np.ma.masked_invalid(shares), bytes=True)[..., :3]
    side = max(1, _SIDE // max(shares.shape))
    return _uri(Image.fromarray(colours.repeat(side, axis=0).repeat(side, axis=1)), "png")


def _uri(image: Image.Image, kind: str, **options: int) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
