"""Tables of the pages are those of docs/results/data."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from configs.targets import ROOT
from scripts.tools.leaderboard import entry
from scripts.tools.results_tables import DATA, markdown, pages, source, written

MARK = re.compile(r"<!-- table: (\S+) (\S+) -->")
MARKED = [(page, *m) for page in pages() for m in MARK.findall(page.read_text("utf-8"))]
GIVEN = {"default", "size", "images"}  # columns whose figures nobody measured


def tables_of_figures(text: str) -> list[str]:
    """Return the lines before tables in which half of a column's cells begin with a figure."""
    lines = ["", *map(str.strip, text.splitlines())]  # also of tables in lists
    heads = [i for i, (above, line) in enumerate(pairwise(lines)) if not above.startswith("|")]
    found = []
    for above in (i for i in heads if lines[i + 1].startswith("| ")):
        end = next((i for i in range(above + 1, len(lines)) if lines[i][:1] != "|"), len(lines))
        names, _, *rows = [line.strip("| ").split(" | ")[1:] for line in lines[above + 1 : end]]
        for name, *column in zip(names, *rows, strict=False):
            figures = [cell for cell in column if re.match(r"[*<+-]*\d", cell)]
            if name not in GIVEN and 2 * len(figures) >= len(column):
                found.append(lines[above])
                break
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_the_figures_of_the_measurements(page: Path) -> None:
    text = page.read_text("utf-8")
    assert written(text) == text, "run `python -m scripts.tools.results_tables`"
    by_hand = [line for line in tables_of_figures(text) if not MARK.fullmatch(line)]
    assert not by_hand, "a table of figures without a source"


def test_a_changed_figure_is_found_and_written_back() -> None:
    page, file, name = MARKED[0]
    text = page.read_text("utf-8")
    last = markdown(source(file, name)).splitlines()[-1]
    figure = re.findall(r"\d\.\d+", last)[-1]
    for changed in (text.replace(last, "9.99".join(last.rsplit(figure, 1))), text + "\n"):
        assert changed != text
        assert written(changed).rstrip("\n") == text.rstrip("\n")


def test_every_source_says_what_was_measured_when_and_how() -> None:
    assert len(MARKED) >= 15
    for _, file, name in MARKED:
        table = source(file, name)
        given = [table.get(key) for key in ("note", "revision", "command")]
        assert all(given) and "not kept" not in given, (file, name)
        assert re.search(r"20\d\d-\d\d-\d\d", table["date"]), (file, name)


def test_every_file_of_figures_is_named_where_its_figures_are() -> None:
    files = sorted(DATA.glob("*.json"))
    texts = [path.read_text("utf-8") for path in (*pages(), *files)]
    assert files and not [one.name for one in files if not any(one.name in t for t in texts)]


def test_speed_ups_follow_from_tau_and_milliseconds() -> None:
    """Of the rounds on GPUs: the figures that other pages repeat."""
    rows = markdown(source("cards.json", "rounds")).splitlines()[2:]
    cells = [[cell.strip(" *|") for cell in row.split("|")[1:-1]] for row in rows]
    for row in cells[1:]:
        for card in (2, 3, 6, 7):
            if row[card] != "-":
                speed = float(row[1]) * float(cells[0][card]) / float(row[card])
                assert float(row[card + 2]) == pytest.approx(speed, abs=0.11), row


def test_a_row_of_the_leaderboard_is_of_a_lossless_method() -> None:
    row = {"nodes": 16, "lossless": True, "images": 32, "identical": 32, "near_ties": 0}
    row |= {"tau": 3.712, "temperature": 1.0, "verifier": "exact", "inconclusive": False}
    found = entry("mine", "eagle2:nodes=16", row, row | {"tau": 2.9})
    assert found == ["mine: `eagle2:nodes=16`", "16", "3.71", "2.90", "32/32", "32/32"]
    with pytest.raises(ValueError, match="lossless"):
        entry("", "eagle2:verifier=lantern", row | {"lossless": False}, row)
