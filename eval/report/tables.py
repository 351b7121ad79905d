"""Tables of an evaluation as Markdown, CSV, LaTeX and HTML, from one list of cells."""

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

from eval.metrics.base import Score
from eval.metrics.paired import Estimate
from eval.report.runs import Run
from eval.report.speed import SpeedRow

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\^{}",
    "\\": r"\textbackslash{}",
}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
_LATEX |= {"↑": r"$\uparrow$", "↓": r"$\downarrow$"}
_LONG = 40  # letters from which a column is broken into lines


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
        layout = "".join(
            "p{4cm}" if long else "r" if place else "l" for place, long in enumerate(self._long)
        )
        head = rf"\begin{{tabular}}{{{layout}}}"
        return "\n".join(
            [
                head,
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                "",
            ]
        )

    def html(self) -> str:
        """In a box that scrolls sideways; columns of long texts have the class `text`, names may break at _."""
        tags = ['<td class="text">' if long else "<td>" for long in self._long]
        head = "".join(f"<th>{_breakable(name)}</th>" for name in self.columns)
        rows = [
            "".join(f"{tag}{_breakable(cell)}</td>" for tag, cell in zip(tags, row, strict=True))
            for row in self.rows
        ]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

    @property
    def _long(self) -> list[bool]:
        """Whether a column has long texts."""
        return [
            max(map(len, column)) > _LONG for column in zip(self.columns, *self.rows, strict=True)
        ]


def speed_table(rows: Sequence[SpeedRow]) -> Table:
    """A line per run; the paper's figures stand beside ours where it has the same cell."""
    names = [
        "run",
        "method",
        "T",
        "s/image",
        "baseline",
        "SR",
        "tau",
        "mean depth",
        "forwards",
        "fewer forwards",
    ]
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
            "-" if row.paper is None else _number(getattr(row.paper, name))
            for name in ("speedup", "tau", "mean_depth")
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
    clip = {
        row.run: row.paper.clip
        for row in rows
        if row.paper is not None and row.paper.clip is not None
    }
    lines = []
    for name in names:
        arrow = "↑" if higher[name] else "↓"
        cells = [_score(by_run[run].get(name)) for run in scores]
        lines.append(
            (
                f"{name} {arrow}",
                *cells,
                *(_number(clip[run]) if name == "clip" else "-" for run in clip),
            )
        )
        prices = [own[name].price if name in own else None for own in by_run.values()]
        if any(prices):
            cells = [_difference(price) for price in prices]
            lines.append((f"{name}, minus the baseline's", *cells, *("-" for _ in clip)))
    return Table("Images", ("figure", *scores, *(f"paper's {run}" for run in clip)), tuple(lines))


def sources_table(scores: dict[str, Sequence[Score]]) -> Table:
    """What every figure rests on: network, resize, count, reference, interval, warning; one line for all figures and
    runs that agree."""
    runs: dict[tuple[str, ...], list[str]] = {}  # by figure and notes
    for run, own in scores.items():
        for score in own:
            notes = (score.reference or "-", score.interval or "-", score.warning or "-")
            key = (score.metric, str(score.count), score.network, score.resize, *notes)
            runs.setdefault(key, []).append(run)
    figures: dict[tuple[str, ...], list[str]] = {}  # by runs and notes
    for (figure, *notes), names in runs.items():
        figures.setdefault((", ".join(names), *notes), []).append(figure)
    columns = (
        "figures",
        "runs",
        "images",
        "library and weights",
        "resize",
        "reference",
        "interval",
        "warning",
    )
    return Table(
        "What the figures rest on",
        columns,
        tuple((", ".join(own), *key) for key, own in figures.items()),
    )


def settings_table(runs: Sequence[Run]) -> tuple[Table, str]:
    """Settings, machines and versions: what differs between the runs, and in words what all have in common."""
    facts = [_facts(run) for run in runs]
    names = dict.fromkeys(name for own in facts for name in own)
    found = {name: tuple(own.get(name, "-") for own in facts) for name in names}
    rows = tuple((name, *cells) for name, cells in found.items() if len(set(cells)) > 1)
    common = [f"{name} {cells[0]}" for name, cells in found.items() if len(set(cells)) == 1]
    return Table("Settings", ("setting", *(run.name for run in runs)), rows), "; ".join(common)


def _facts(run: Run) -> dict[str, str]:
    machine = {name: run.manifest.get(name) for name in ("hardware", "versions", "revision")}
    flags = {f"--{flag}": value for flag, value in run.settings.items() if flag != "output_dir"}
    facts = {"folder": run.folder} | flags | machine
    return {name: _text(value) for name, value in facts.items() if value is not None}


def _text(value: object) -> str:
    parts = value.items() if isinstance(value, dict) else ()
    return (
        ", ".join(f"{name} {part}" for name, part in parts if part is not None)
        if parts
        else str(value)
    )


def _method(row: SpeedRow) -> str:
    proposal = f", {row.proposal}" if row.proposal else ""
    other = (
        " (relaxed: other images than plain decoding)"
        if not row.lossless
        else " (same law, other images)"
    )
    return row.method + proposal + ("" if row.same_tokens else other)


def _doubt(row: SpeedRow) -> str:
    return " (!)" if row.doubtful else ""


def _number(value: float | None) -> str:
    return (
        "-"
        if value is None
        else f"{value:.0f}"
        if abs(value) >= 100
        else f"{value:.3g}"
        if value % 1
        else f"{value:g}"
    )


def _ratio(ratio: Estimate | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio.value:.2f}" + (
        "" if ratio.low is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    )


def _difference(price: Estimate | None) -> str:
    if price is None:
        return "-"
    ends = "" if price.low is None else f" [{_places(price.low, '+')}, {_places(price.high, '+')}]"
    return _places(price.value, "+") + ends


def _score(score: Score | None) -> str:
    if score is None:
        return "-"
    ends = "" if score.low is None else f" [{_places(score.low)}, {_places(score.high)}]"
    return _places(score.value) + ends + (" (!)" if score.warning else "")


def _places(value: float, sign: str = "") -> str:
    return f"{value:{sign}.4f}" if abs(value) < 10 else f"{value:{sign}.4g}"


def _breakable(text: str) -> str:
    return html.escape(text).replace("_", "_<wbr>")


def _latex_row(row: Sequence[str]) -> str:
    text = " & ".join(map(_latex, row)) + r" \\"
    return (
        "{}" + text if text.startswith(("[", "*")) else text
    )  # the line break before it would take these as its own


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
