"""Tables of the pages are those of docs/results/data."""

import re

import pytest

from configs.targets import ROOT
from scripts.tools.results_tables import DATA, pages, source, written

MARK = re.compile(r"<!-- table: (\S+) (\d+) -->")
MARKED = [(page, *m) for page in pages() for m in MARK.findall(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_figures_of_the_measurements(page) -> None:
    text = page.read_text("utf-8")
    assert written(text) == text, "run `python -m scripts.tools.results_tables`"


def test_a_changed_figure_is_found_and_written_back() -> None:
    page, file, number = MARKED[0]
    text = page.read_text("utf-8")
    row = source(file, int(number))["rows"][0]
    for changed in (text.replace(" | ".join(row), " | ".join([*row[:-1], "9.99"])), text + "\n"):
        assert written(changed).rstrip("\n") == text.rstrip("\n")
    assert " | ".join(row) in text


def test_every_source_says_when_and_where_it_was_measured() -> None:
    assert len(MARKED) >= 15
    for _, file, number in MARKED:
        tables = source(file, int(number)), source(file, 0)
        assert any(re.search(r"20\d\d-\d\d-\d\d", table["note"]) for table in tables), file
        assert (DATA / file).is_file()
