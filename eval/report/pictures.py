"""Pictures of the report as data URIs: thumbnails, differences, acceptance maps, plots."""

import base64
import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from eval.report.run import Run
from eval.report.speed import SpeedRow

_SIDE = 384  # pixels of a thumbnail's longer edge
_GAIN = 4  # differences are shown this much stronger


def thumbnail(image: Image.Image) -> str:
    """Return the image, at most 384 pixels on its longer edge, as a JPEG of high quality."""
    small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=90)
    return _uri("image/jpeg", buffer.getvalue())


def difference(image: Image.Image, lossless: Image.Image) -> tuple[str, float] | None:
    """Return four times |image - lossless| as a picture, and its mean in grey levels, 0 to 255.

    None if their sizes differ.
    """
    if image.size != lossless.size:
        return None
    ours, theirs = (np.asarray(each.convert("RGB"), dtype=np.int16) for each in (image, lossless))
    apart = np.abs(ours - theirs)
    shown = Image.fromarray((apart * _GAIN).clip(0, 255).astype(np.uint8))
    return thumbnail(shown), float(apart.mean())


def acceptance_map(lengths: np.ndarray) -> str:
    """Return accepted lengths (rows, columns) as colours, from dark (0) to yellow (8 and more)."""
    shares = lengths / 8
    colours = matplotlib.colormaps["viridis"](np.ma.masked_invalid(shares), bytes=True)[..., :3]
    side = max(1, _SIDE // max(shares.shape))
    picture = Image.fromarray(colours).resize(
        (shares.shape[1] * side, shares.shape[0] * side), Image.Resampling.NEAREST
    )
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return _uri("image/png", buffer.getvalue())


def speed_plot(rows: Sequence[SpeedRow]) -> str:
    """Return seconds per image as bars, with the speed-up where there is a baseline."""
    figure, axes = _axes(len(rows))
    axes.barh([row.run for row in rows], [row.seconds for row in rows], color="#4477aa")
    for place, row in enumerate(rows):
        ratio = "" if row.speedup is None else f", SR {row.speedup.value:.2f}"
        axes.text(row.seconds, place, f" {row.seconds:.3g} s{ratio}", va="center", fontsize=9)
    axes.set(xlabel="seconds per image", xlim=(0, 1.45 * max(row.seconds for row in rows)))
    return _svg(figure)


def tau_plot(runs: Sequence[Run]) -> str:
    """Return the tokens per round of the images: median, quartiles and range by run."""
    figure, axes = _axes(len(runs))
    taus = [[record["tau"] for record in run.records.values()] for run in runs]
    axes.boxplot(taus, orientation="horizontal", whis=(0, 100), widths=0.6)
    axes.set_yticks(range(1, len(runs) + 1), [run.name for run in runs])
    axes.set(xlabel="tau: tokens per round, by image")
    return _svg(figure)


def _axes(rows: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.8, 0.9 + 0.4 * rows), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.invert_yaxis()
    return figure, axes


def _svg(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return _uri("image/svg+xml", buffer.getvalue())


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
