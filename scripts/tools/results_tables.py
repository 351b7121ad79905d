"""Write the tables of the pages from the measurements: `python -m scripts.tools.results_tables`.

A comment before a table, `<!-- table: proposals.json 0 -->`, names its source: the table of that
number, counted from 0, in docs/results/data. There each table has a note with the machine, the
date, the revision and the command. A new measurement goes into the file; this writes the page.
"""

import re
from pathlib import Path
from typing import Any

from configs.targets import ROOT
from support.durable import replace_file
from support.json_files import read_object
from support.script import run_script

DATA = ROOT / "docs" / "results" / "data"
_MARKED = re.compile(r"(<!-- table: (\S+) (\d+) -->\n)(?:\|.*(?:\n|\Z))*")


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
    return _MARKED.sub(lambda m: m[1] + markdown(source(m[2], int(m[3]))), text)


def source(file: str, number: int) -> dict[str, Any]:
    """Return a table of docs/results/data; an IndexError if the file has fewer."""
    return read_object(DATA / file)["tables"][number]


def markdown(table: dict[str, Any]) -> str:
    """Return a table's columns and rows in Markdown."""
    rows = [table["columns"], *table["rows"]]
    head, *lines = [f"| {' | '.join(map(str, row))} |\n".replace("  ", " ") for row in rows]
    return head + "|" + "---|" * len(table["columns"]) + "\n" + "".join(lines)


if __name__ == "__main__":
    run_script(results_tables)
