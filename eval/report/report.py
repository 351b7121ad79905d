"""The report: one HTML file that opens from disk, at a phone's width and on paper, and needs nothing else."""

import html
from collections.abc import Sequence

import numpy as np
from PIL import Image

from eval.report.pictures import acceptance_map, difference, speed_plot, tau_plot, thumbnail
from eval.report.runs import Run
from eval.report.speed import SpeedRow
from eval.report.tables import Table, settings_table

PAPER_NOTE = (
    "The paper's figures are its own (arXiv 2512.21857): Anole, an unnamed machine, "
    "its own plain decoding as 1.00."
)
NOTES = (
    "SR: seconds of the baseline / seconds, over images with the same prompt and seed; image decoding is not counted. "
    "The baseline is a run of the same model and sampling law; -: none; (!): on another machine or batch size. "
    "tau: tokens decided in rounds / rounds, bonus token included. In brackets: 95 % intervals over images. "
    "Relaxed runs draw other images than plain decoding: their speed has a price."
)
IMAGE_NOTES = (
    "↑, ↓: more, or less, is better. In brackets: the interval that is named below; (!): a warning there. "
    "Differences to the baseline are over the same images."
)
Key = tuple[str, int]  # prompt and seed
Maps = dict[str, dict[str, np.ndarray]]  # run, image -> accepted lengths (rows, columns)
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.45 system-ui, sans-serif; }
body { max-width: 72rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; margin-bottom: .5rem; }
p, li { max-width: 52rem; } .note { font-size: .875rem; } h3 small { font-weight: 400; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .875rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #8886; text-align: left; vertical-align: top; }
th, td { white-space: nowrap; overflow-wrap: break-word; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { position: sticky; left: 0; background: Canvas; padding-left: 0; }
.words td, .text { white-space: normal; } .text { min-width: 9rem; } wbr { display: none; }
.row { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .75rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.5rem; }
img { width: 100%; height: auto; background: #fff; } figure { margin: 0; } figcaption { font-size: .8rem; }
@media (max-width: 40rem) { td:first-child { white-space: normal; max-width: 10.5rem; } wbr { display: inline; } }
@media print {
  @page { margin: 12mm; } :root { color-scheme: light; font-size: 9pt; } body { max-width: none; padding: 0; }
  .scroll { overflow: visible; } table { font-size: 6.5pt; } wbr { display: inline; }
  th, td { white-space: normal; position: static !important; } .text { min-width: 0; }
  .row { grid-template-columns: repeat(6, 1fr); } .plots { grid-template-columns: 1fr 1fr; }
  tr, figure, .together { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""


def shown_keys(runs: Sequence[Run], images: int) -> list[Key]:
    """The first prompts and seeds; those that all runs have come first."""
    keys = list(dict.fromkeys(key for run in runs for key in run.by_image))
    return sorted(keys, key=lambda key: -sum(key in run.by_image for run in runs))[:images]


def report(
    runs: Sequence[Run],
    rows: Sequence[SpeedRow],
    tables: Sequence[Table],
    remarks: Sequence[str],
    keys: Sequence[Key],
    maps: Maps,
) -> str:
    """The page: tables, plots, remarks, the images of `keys` by all runs, settings. tables: speed, images, sources;
    rows: one per run; remarks: warnings and what was not computed."""
    speed, images, sources = tables
    names = html.escape(", ".join(run.name for run in runs))
    note = f"{NOTES} {PAPER_NOTE}" if any(row.paper for row in rows) else NOTES
    parts = [_section(speed.title, speed.html() + _note(note) + _plots(runs, rows))]
    if images.rows:
        parts.append(_section(images.title, images.html() + _note(IMAGE_NOTES)))
    if remarks:
        parts.append(_section("Remarks", _items(remarks)))
    if keys:
        parts.append(_section("The same prompts and seeds", _comparison(runs, rows, keys, maps)))
    if sources.rows:
        parts.append(_section(sources.title, f'<div class="words">{sources.html()}</div>'))
    parts.append(_section("Settings", _settings(runs)))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    head += f"<title>Evaluation of {names}</title><style>{_STYLE}</style>"
    body = "\n".join([f"<h1>Evaluation of {names}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _plots(runs: Sequence[Run], rows: Sequence[SpeedRow]) -> str:
    seconds = ", ".join(f"{row.run} {row.seconds:.3g}" for row in rows)
    taus = ", ".join(f"{row.run} {row.tau:.2f}" for row in rows)
    speed = _image(speed_plot(rows), f"Seconds per image: {seconds}")
    tau = _image(tau_plot(runs), f"Tokens per round (tau), over all images: {taus}")
    return f'<div class="plots">{speed}{tau}</div>'


def _comparison(
    runs: Sequence[Run], rows: Sequence[SpeedRow], keys: Sequence[Key], maps: Maps
) -> str:
    """A row of pictures per prompt and seed."""
    named = {run.name: run for run in runs}
    baselines = [named.get(row.baseline) for row in rows]
    legend = (
        "Differences are shown four times as strong. Maps of accepted lengths: the drafts accepted in the round that "
        "decided each token, from dark (none) to yellow (8 and more)."
    )
    blocks = []
    for prompt, seed in keys:
        figures = "".join(
            _figures(run, (prompt, seed), baseline, maps[run.name])
            for run, baseline in zip(runs, baselines, strict=True)
            if (prompt, seed) in run.by_image
        )
        title = f"<h3>{html.escape(prompt)} <small>seed {seed}</small></h3>"
        blocks.append(f'<div class="together">{title}<div class="row">{figures}</div></div>')
    return _note(legend) + "".join(blocks)


def _figures(run: Run, key: Key, baseline: Run | None, maps: dict[str, np.ndarray]) -> str:
    """The image, its difference to the baseline's if it need not be the same, its map if there is a trace."""
    record = run.by_image[key]
    with Image.open(run.path(record)) as image:
        image.load()
    figures = [
        _figure(thumbnail(image), f"{run.name}: {record['seconds']:.3g} s, tau {record['tau']:.2f}")
    ]
    if (
        not run.same_tokens
        and baseline is not None
        and baseline is not run
        and key in baseline.by_image
    ):
        with Image.open(baseline.path(baseline.by_image[key])) as plain:
            apart = difference(image, plain)
        if apart is not None:
            figures.append(
                _figure(
                    apart[0], f"difference to {baseline.name}: {apart[1]:.1f} of 255 on average"
                )
            )
    if record["id"] in maps:
        figures.append(_figure(acceptance_map(maps[record["id"]]), f"{run.name}: accepted lengths"))
    return "".join(figures)


def _figure(source: str, caption: str) -> str:
    return (
        f"<figure>{_image(source, caption)}<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _image(source: str, text: str) -> str:
    return f'<img alt="{html.escape(text)}" src="{source}">'


def _settings(runs: Sequence[Run]) -> str:
    table, common = settings_table(runs)
    shared = f"<p>{'The same for all: ' if len(runs) > 1 else ''}{html.escape(common)}</p>"
    return (table.html() if table.rows else "") + shared


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


def _items(texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in texts) + "</ul>"
