"""Write the tables of the pages from the measurements: `python -m scripts.tools.results_tables`.

A comment before a table, `<!-- table: proposals.json 0 -->`, names its source: the table of that
number, counted from 0, or of that title, in docs/results/data. There each table has a note with
what was measured and where, the date, the revision and the command. A new measurement goes into
the file; this writes the page.

A figure that stands in another table is a reference in its cell, so it is written down once:
`{rules.json|rules|PathExplore|worst:.3f}` is the figure of that file, table, row and column. A
table `of` another has that one's rows, under the file's `names` and in their order.
"""

import re
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from configs.targets import ROOT
from support.durable import replace_file
from support.json_files import read_object
from support.script import run_script

DATA = ROOT / "docs" / "results" / "data"
_MARKED = re.compile(r"(<!-- table: (\S+) (\S+) -->\n)(?:\|.*(?:\n|\Z))*")
_REFERENCE = re.compile(r"\{([^{}|]+)\|([^{}|]+)\|([^{}|]+)\|([^{}|]+?)(:\.\d[ef])?\}")


def results_tables() -> None:
    """Write the tables of README and docs that name their source."""
    for page in pages():
        before = page.read_text("utf-8")
        if (text := written(before)) != before:
            replace_file(page, text.encode())
            print(page.relative_to(ROOT))


def pages() -> list[Path]:
    """Return the pages that may have tables of measurements."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def written(text: str) -> str:
    """Return a page with the tables that its comments name."""
    return _MARKED.sub(lambda m: m[1] + markdown(source(m[2], m[3])), text)


def source(file: str, name: str) -> dict[str, Any]:
    """Return a table of docs/results/data by its number or title; an error if it has none."""
    content = read_object(DATA / file)
    if name in content:  # a list of objects, as scripts write them
        rows = content[name]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        return {"columns": columns, "rows": [[row.get(key) for key in columns] for row in rows]}
    tables = content["tables"]
    titles = [table.get("title") for table in tables]
    table = tables[int(name) if name.isdecimal() else titles.index(name)]
    return {"names": content.get("names", {})} | table


def markdown(table: dict[str, Any]) -> str:
    """Return a table's columns and rows in Markdown."""
    rows = [table["columns"], *_rows(table)]
    head, *lines = [f"| {' | '.join(map(_text, row))} |\n".replace("  ", " ") for row in rows]
    return head + "|" + "---|" * len(table["columns"]) + "\n" + "".join(lines)


def _rows(table: dict[str, Any]) -> list[list[Any]]:
    if "of" not in table:
        return table["rows"]
    rows = {row[0]: row[1:] for row in source(*table["of"].split("|"))["rows"]}
    names = table["names"]
    order = [*(name for name in names if name in rows), *(row for row in rows if row not in names)]
    return [[names.get(row, f"`{row}`"), *rows[row]] for row in order]


def _text(cell: Any) -> str:
    return _REFERENCE.sub(lambda m: _figure(m[1], m[2], m[3], m[4], m[5]), str(cell))


def _figure(file: str, name: str, key: str, column: str, form: str | None) -> str:
    """Return a cell; key: the row's first cells, as many as tell it apart, by commas."""
    table = source(file, name)
    place = table["columns"].index(column)
    for row in table["rows"]:
        if any(", ".join(map(str, row[:end])) == key for end in range(1, len(row) + 1)):
            return _text(row[place]).strip("*") if form is None else _rounded(row[place], form)
    raise LookupError(f"{file}: expected a row {key} in {name}, got none")


def _rounded(figure: float, form: str) -> str:
    """Return a figure with so many digits, halves upwards; form: as `:.2f` or `:.0e`."""
    if form.endswith("e"):
        return format(figure, form[1:])
    return str(Decimal(str(figure)).quantize(Decimal(1).scaleb(-int(form[2])), ROUND_HALF_UP))


if __name__ == "__main__":
    run_script(results_tables)
