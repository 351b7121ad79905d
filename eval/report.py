"""The report: one HTML file that opens from disk, at a phone's width and on paper, and needs nothing else."""

import html
import json
from collections.abc import Sequence

import numpy as np
from PIL import Image

from eval.pictures import acceptance_map, difference, speed_plot, tau_plot, thumbnail
from eval.runs import Line, Run
from eval.speed import SpeedRow
from eval.tables import Table

PAPER_NOTE = (
    "The paper's figures are its own (arXiv 2512.21857): Anole, an unnamed machine, its own plain decoding as 1.00."
)
NOTES = (
    "SR: seconds of the baseline / seconds, over images with the same prompt and seed; image decoding is not counted. "
    "The baseline is a run of the same model and sampling law; -: none; (!): on another machine or batch size. "
    "tau: tokens decided in rounds / rounds, bonus token included. In brackets: 95 % intervals over images. "
    "Relaxed runs draw other images than plain decoding: their speed has a price."
)
Key = tuple[str, int]  # prompt and seed
Maps = dict[str, dict[str, np.ndarray]]  # run, image -> accepted lengths (rows, columns)
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.45 system-ui, sans-serif; }
body { max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; font-weight: 600; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .875rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #8886; text-align: left; vertical-align: top; }
th { white-space: nowrap; } img { max-width: 100%; height: auto; background: #fff; }
.row { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .75rem; }
figure { margin: 0; } figure img { width: 100%; image-rendering: auto; } figcaption { font-size: .8rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .75rem; max-height: 16rem; overflow: auto; }
li, h3 { overflow-wrap: anywhere; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } .scroll { overflow: visible; }
  section, figure, tr { break-inside: avoid; } table { font-size: 7.5pt; }
  pre { max-height: none; overflow: visible; } }
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
    """The page: tables, plots, remarks, the images of `keys` by all runs, settings. tables: the first is speed; rows:
    one per run; remarks: warnings and what was not computed."""
    note = f"{NOTES} {PAPER_NOTE}" if any(row.paper for row in rows) else NOTES
    parts = [f"<h1>Evaluation of {html.escape(', '.join(run.name for run in runs))}</h1>"]
    parts += [_section(tables[0].title, f"{tables[0].html()}<p>{html.escape(note)}</p>{_plots(runs, rows)}")]
    parts += [_section(table.title, table.html()) for table in tables[1:] if table.rows]
    if remarks:
        parts.append(_section("Remarks", _items(remarks)))
    if keys:
        parts.append(_section("The same prompts and seeds", _comparison(runs, rows, keys, maps)))
    parts.append(_section("Settings", "".join(map(_settings, runs))))
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>Evaluation</title><style>{_STYLE}</style>"
    body = "\n".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _plots(runs: Sequence[Run], rows: Sequence[SpeedRow]) -> str:
    speed, tau = speed_plot(rows), tau_plot(runs)
    return f'<p><img alt="Seconds per image" src="{speed}"></p><p><img alt="Tokens per round" src="{tau}"></p>'


def _comparison(runs: Sequence[Run], rows: Sequence[SpeedRow], keys: Sequence[Key], maps: Maps) -> str:
    """A row of pictures per prompt and seed."""
    named = {run.name: run for run in runs}
    baselines = [named.get(row.baseline) for row in rows]
    legend = (
        "<p>Differences are shown four times as strong. Acceptance maps: the drafts accepted in the round that decided "
        "each token, from dark (none) to yellow (8 and more).</p>"
    )
    blocks = []
    for prompt, seed in keys:
        figures = "".join(
            _figures(run, (prompt, seed), baseline, maps[run.name])
            for run, baseline in zip(runs, baselines, strict=True)
            if (prompt, seed) in run.by_image
        )
        title = f"<h3>{html.escape(prompt)} <small>seed {seed}</small></h3>"
        blocks.append(f'<section>{title}<div class="row">{figures}</div></section>')
    return legend + "".join(blocks)


def _figures(run: Run, key: Key, baseline: Run | None, maps: dict[str, np.ndarray]) -> str:
    """The image, its difference to the baseline's if it need not be the same, its map if there is a trace."""
    record = run.by_image[key]
    with Image.open(run.path(record)) as image:
        image.load()
    figures = [_figure(thumbnail(image), f"{run.name}: {record['seconds']:.3g} s, tau {record['tau']:.2f}")]
    if not run.same_tokens and baseline is not None and baseline is not run and key in baseline.by_image:
        with Image.open(baseline.path(baseline.by_image[key])) as plain:
            apart = difference(image, plain)
        if apart is not None:
            figures.append(_figure(apart[0], f"difference to {baseline.name}: {apart[1]:.1f} of 255 on average"))
    if record["id"] in maps:
        figures.append(_figure(acceptance_map(maps[record["id"]]), f"{run.name}: accepted lengths"))
    return "".join(figures)


def _figure(source: str, caption: str) -> str:
    text = html.escape(caption)
    return f'<figure><img alt="{text}" src="{source}"><figcaption>{text}</figcaption></figure>'


def _settings(run: Run) -> str:
    shown: Line = {name: run.manifest.get(name) for name in ("settings", "hardware", "versions", "revision")}
    text = html.escape(json.dumps(shown, indent=1, ensure_ascii=False))
    title = html.escape(f"{run.name}: {run.folder}")
    return f"<h3>{title}</h3><pre>{text}</pre>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


def _items(texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in texts) + "</ul>"
