"""Tables of an evaluation as Markdown, CSV, LaTeX and HTML, from one list of cells."""

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

from eval.metrics.base import Score
from eval.paired import Estimate
from eval.speed import SpeedRow

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\^{}", "\\": r"\textbackslash{}"}

_WIDE = 40  # letters from which a column of LaTeX is broken into lines


@dataclass(frozen=True)
class Table:
    """A title, the names of the columns and the rows' cells, all text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """A GitHub table."""
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (self.columns, *self.rows)]
        lines = ["| " + " | ".join(row) + " |" for row in cells]
        return "\n".join([lines[0], "|" + " --- |" * len(self.columns), *lines[1:]]) + "\n"

    def csv(self) -> str:
        """Comma-separated, with a line of names."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()

    def latex(self) -> str:
        """A tabular with booktabs' rules; columns of long texts are broken into lines."""
        lines = [_latex_row(row) for row in (self.columns, *self.rows)]
        wide = [max(map(len, column)) > _WIDE for column in zip(self.columns, *self.rows, strict=True)]
        layout = "".join("p{4cm}" if long else "r" if place else "l" for place, long in enumerate(wide))
        head = rf"\begin{{tabular}}{{{layout}}}"
        return "\n".join([head, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}", ""])

    def html(self) -> str:
        """A table in a box that scrolls sideways."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self.rows]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def speed_table(rows: Sequence[SpeedRow]) -> Table:
    """A line per run; the paper's figures stand beside ours where it has the same cell."""
    names = ["run", "method", "T", "s/image", "baseline", "SR", "tau", "mean depth", "forwards", "fewer forwards"]
    names += ["same tokens"]
    ours = [
        (
            row.run,
            _method(row),
            f"{row.temperature:g}",
            _number(row.seconds),
            row.baseline or "-",
            _ratio(row.speedup) + _doubt(row),
            _number(row.tau),
            _number(row.mean_depth),
            _number(row.forwards),
            _number(row.compression),
            "-" if row.identical is None else f"{row.identical}/{row.common}" + _doubt(row),
        )
        for row in rows
    ]
    if not any(row.paper for row in rows):
        return Table("Speed", tuple(names), tuple(ours))
    theirs = [
        tuple(
            "-" if row.paper is None else _number(getattr(row.paper, name)) for name in ("speedup", "tau", "mean_depth")
        )
        for row in rows
    ]
    names += [f"paper's {name}" for name in ("SR", "tau", "mean depth")]
    return Table("Speed", tuple(names), tuple(a + b for a, b in zip(ours, theirs, strict=True)))


def metric_table(scores: dict[str, Sequence[Score]], rows: Sequence[SpeedRow]) -> Table:
    """A line per figure, a column per run; below it the differences to the lossless baselines, over the same images;
    the paper's CLIP scores in columns of their own."""
    names = list(dict.fromkeys(score.metric for own in scores.values() for score in own))
    by_run = {run: {score.metric: score for score in own} for run, own in scores.items()}
    higher = {score.metric: score.higher for own in scores.values() for score in own}
    clip = {row.run: row.paper.clip for row in rows if row.paper is not None and row.paper.clip is not None}
    lines = []
    for name in names:
        arrow = " (higher is better)" if higher[name] else " (lower is better)"
        cells = [_score(by_run[run].get(name)) for run in scores]
        lines.append((name + arrow, *cells, *(_number(clip[run]) if name == "clip" else "-" for run in clip)))
        prices = [own[name].price if name in own else None for own in by_run.values()]
        if any(prices):
            cells = [_difference(price) for price in prices]
            lines.append((f"{name}, minus the baseline's", *cells, *("-" for _ in clip)))
    return Table("Images", ("figure", *scores, *(f"paper's {run}" for run in clip)), tuple(lines))


def sources_table(scores: dict[str, Sequence[Score]]) -> Table:
    """What every figure rests on: network, resize, count, reference, interval, warning; one line for all that agree."""
    figures: dict[tuple[str, ...], list[str]] = {}
    for run, own in scores.items():
        for score in own:
            notes = (score.reference or "-", score.interval or "-", score.warning or "-")
            key = (run, str(score.count), score.network, score.resize, *notes)
            figures.setdefault(key, []).append(score.metric)
    columns = ("figures", "run", "images", "library and weights", "resize", "reference", "interval", "warning")
    return Table("What the figures rest on", columns, tuple((", ".join(own), *key) for key, own in figures.items()))


def _method(row: SpeedRow) -> str:
    proposal = f", {row.proposal}" if row.proposal else ""
    other = " (relaxed: other images than plain decoding)" if not row.lossless else " (same law, other images)"
    return row.method + proposal + ("" if row.same_tokens else other)


def _doubt(row: SpeedRow) -> str:
    return " (!)" if row.doubtful else ""


def _number(value: float | None) -> str:
    return (
        "-" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if value % 1 else f"{value:g}"
    )


def _ratio(ratio: Estimate | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio.value:.2f}" + ("" if ratio.low is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]")


def _difference(price: Estimate | None) -> str:
    if price is None:
        return "-"
    return f"{price.value:+.3g}" + ("" if price.low is None else f" [{price.low:+.3g}, {price.high:+.3g}]")


def _score(score: Score | None) -> str:
    if score is None:
        return "-"
    ends = "" if score.low is None else f" [{score.low:.4g}, {score.high:.4g}]"
    return f"{score.value:.4g}{ends}" + (" (!)" if score.warning else "")


def _latex_row(row: Sequence[str]) -> str:
    text = " & ".join(map(_latex, row)) + r" \\"
    return "{}" + text if text.startswith(("[", "*")) else text  # the line break before it would take these as its own


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
