"""A table of texts, written as Markdown, CSV or LaTeX."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.durable import replace_file

_LATEX = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\^{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}
NONE = "-"  # in a cell without a value
# a figure in bold or not, its interval, and whether something speaks against it
_PARTS = re.compile(r"\**([^\s*]+)\**(?: [(\[]([-+.\de]+?)(?:-|, )([-+.\de]+)[)\]])?( \(!\))?")
_WORD = re.compile("[A-Za-z]{3}")  # a cell such as "95 %, over images" is no figure
_LONG = 40  # characters; a column with a longer text is broken into lines


@dataclass(frozen=True)
class Table:
    """Column names and rows of cells, all text; with a title where it is shown with one."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    @staticmethod
    def of(rows: Sequence[Mapping[str, str]], title: str = "") -> "Table":
        """Return the table of rows of cells by column; a row may lack some columns."""
        columns = tuple(dict.fromkeys(name for row in rows for name in row))
        cells = tuple(tuple(row.get(name, NONE) for name in columns) for row in rows)
        return Table(columns, cells, title)

    def markdown(self) -> str:
        names, *rows = [
            " | ".join(_in_one_line(cell).replace("|", "\\|") for cell in row)
            for row in (self.columns, *self.rows)
        ]
        rule = " | ".join("---" for _ in self.columns)
        return "".join(f"| {row} |\n" for row in (names, rule, *rows))

    def csv(self) -> str:
        """Return the table with figures alone in their cells, which are empty where there is none.

        The ends of intervals and whether a figure is doubtful are in further columns, on the right.
        """
        columns = {name: [row[n] for row in self.rows] for n, name in enumerate(self.columns)}
        more: dict[str, list[str]] = {}
        for name, cells in columns.items():
            parts = [_parts(cell) for cell in cells]
            columns[name] = [figure for figure, *_ in parts]
            for number, end in enumerate(("low", "high", "doubtful"), 1):
                if any(part[number] for part in parts):
                    more[f"{name} {end}"] = [part[number] for part in parts]
        columns |= more
        text = io.StringIO()
        rows = zip(*columns.values(), strict=True)
        csv.writer(text, lineterminator="\n").writerows([columns, *rows])
        return text.getvalue()

    def latex(self) -> str:
        """Return a tabular with booktabs rules; columns of long texts are paragraphs of 4 cm."""
        names, *rows = [_latex_row(row) for row in (self.columns, *self.rows)]
        kinds = ["p{4cm}" if long else "r" for long in self.long_columns]
        if kinds and kinds[0] == "r":  # the names of the rows
            kinds[0] = "l"
        begin = rf"\begin{{tabular}}{{{''.join(kinds)}}}"
        text = [begin, r"\toprule", names, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
        return "\n".join(text) + "\n"

    def write(self, place: str, words: str = "") -> None:
        """Write place.md, .csv and .tex; words: what the first holds instead of the bare table."""
        texts = {"md": words or self.markdown(), "csv": self.csv(), "tex": self.latex()}
        for ending, text in texts.items():
            replace_file(Path(f"{place}.{ending}"), text.encode())

    @property
    def long_columns(self) -> tuple[bool, ...]:
        """Whether each column holds a text of more than 40 characters."""
        return tuple(
            max(map(len, column)) > _LONG for column in zip(self.columns, *self.rows, strict=True)
        )

    @property
    def figure_columns(self) -> tuple[bool, ...]:
        """Whether each column holds figures, or dashes where there are none."""
        return tuple(
            all(_is_figure(cell) for cell in column) for column in zip(*self.rows, strict=True)
        )


def _parts(cell: str) -> tuple[str, str, str, str]:
    """Return a cell's figure or text, the ends of its interval, and "yes" if it is doubtful."""
    if (found := _PARTS.fullmatch("" if cell == NONE else cell)) is None:
        return ("" if cell == NONE else cell), "", "", ""
    figure, low, high, mark = found.groups("")
    return figure, low, high, "yes" if mark else ""


def _is_figure(cell: str) -> bool:
    return (cell[:1].isdigit() or cell[:1] in "+-") and _WORD.search(cell) is None


def number(value: float | None) -> str:
    """Return a figure with three digits, or all of those before the point."""
    if value is None:
        return NONE
    # z: no "-0" for a small negative figure.
    if abs(value) >= 100:
        return f"{value:z.0f}"
    return f"{value:z.3g}" if value % 1 else f"{value:zg}"


def _latex_row(row: Sequence[str]) -> str:
    text = " & ".join("".join(_LATEX.get(letter, letter) for letter in cell) for cell in row)
    text = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)
    # The `\\` that ends the row above would read a leading [ or * as its own argument.
    return ("{}" if text.startswith(("[", "*")) else "") + text + r" \\"


def _in_one_line(text: str) -> str:
    """Return a text with line ends as escapes: a folder's name may hold some."""
    return text.replace("\r", "\\r").replace("\n", "\\n")
