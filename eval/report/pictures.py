"""Pictures of the report: plots as SVG in the colour of the page's text, images as data URIs."""

import base64
import io
import re
from collections.abc import Sequence

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from eval.report.run import Run
from eval.report.speed import SpeedRow

_SIDE = 384  # pixels of a thumbnail's longer edge
_GAIN = 4  # differences are shown this much stronger
_INK = "#010203"  # stands for the page's colour until the SVG is written
_BAR = "#4477aa"  # seen on white and on black
_MEDIAN = "#dd7733"
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
    **{f"boxplot.{stroke}props.color": _INK for stroke in ("box", "whisker", "cap")},
    "boxplot.medianprops.color": _MEDIAN,
}


def speed_plot(rows: Sequence[SpeedRow], caption: str) -> Markup:
    """Return seconds per image as bars, with the speed-up where there is a baseline.

    caption: the figures in words, for who cannot see them.
    """
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "speed"}):
        figure, axes = _axes(len(rows))
        axes.barh([row.run for row in rows], [row.seconds for row in rows], color=_BAR)
        for number, row in enumerate(rows):
            ratio = "" if row.speedup is None else f", speed-up {row.speedup.value:.2f}"
            end, gap = (row.seconds, number), (4, 0)
            text = f"{row.seconds:.3g} s{ratio}"
            axes.annotate(text, end, gap, textcoords="offset points", va="center", fontsize=9)
        axes.set(xlabel="seconds per image", xlim=(0, 1.75 * max(row.seconds for row in rows)))
        return _svg(figure, caption)


def tau_plot(runs: Sequence[Run], caption: str) -> Markup:
    """Return the tokens per round of the images: median, quartiles and range by run."""
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": "tau"}):
        figure, axes = _axes(len(runs))
        taus = [[record["tau"] for record in run.records.values()] for run in runs]
        axes.boxplot(taus, orientation="horizontal", whis=(0, 100), widths=0.6)
        axes.set_yticks(range(1, len(runs) + 1), [run.name for run in runs])
        axes.set(xlabel="tau: tokens per round, by image")
        return _svg(figure, caption)


def _axes(rows: int) -> tuple[Figure, Axes]:
    # not pyplot, which keeps every figure until it is closed
    figure = Figure(figsize=(4.8, 0.9 + 0.4 * rows), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    return figure, axes


def _svg(figure: Figure, caption: str) -> Markup:
    """Return the figure as an element of the page."""
    buffer = io.StringIO()
    # No date here and fixed salts above: the same figures give the same bytes.
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
    """Return four times |image - lossless| as a picture, and its mean in grey levels, 0 to 255.

    None if their sizes differ.
    """
    if image.size != lossless.size:
        return None
    # int16, since a difference of uint8 wraps around.
    ours, theirs = (np.asarray(i.convert("RGB"), dtype=np.int16) for i in (image, lossless))
    apart = np.abs(ours - theirs)
    shown = Image.fromarray((apart * _GAIN).clip(0, 255).astype(np.uint8))
    return thumbnail(shown), float(apart.mean())


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
