"""Every lossless rule, proposal and kind of tree that the settings allow; `-s`: the table.

`scripts.rules.whole_rounds` makes the stored table with four times as many images as here.
"""

import json
from collections.abc import Iterable

import pytest
from browser import ALL, thinned

from configs.schema import ROOT
from scripts.rules.whole_rounds import CONTROLS, Cell, cells, names, outcome, row

IMAGES = 50_000 if ALL else 4_000
# With few images one drafter a tree, which shows the most faults, and no tree that is a part of
# another one: "three levels" holds siblings and cousins. A third of what is left, since every rule
# is enumerated on every tree as well.
CELLS = [
    cell
    for cell in cells()
    if ALL
    or (
        cell.q == ("blind" if cell.verifier.reads_distributions else "near")
        and cell.tree not in ("siblings", "cousins")
    )
]


def apart(these: Iterable[Cell]) -> list:
    """Each cell for whichever worker is free: all of them on one would take it an hour."""
    return [pytest.param(c, marks=pytest.mark.xdist_group(f"exactness of {c}")) for c in these]


@pytest.mark.parametrize("cell", apart(thinned(CELLS)), ids=str)
def test_tokens_have_the_targets_distribution(cell: Cell) -> None:
    """The joint one, and that of the tokens after a refused draft."""
    result = outcome(cell, IMAGES)
    print(row(cell, result))
    assert result.exact


@pytest.mark.parametrize("cell", apart(CONTROLS), ids=str)
def test_faults_are_seen(cell: Cell) -> None:
    result = outcome(cell, IMAGES)
    print(row(cell, result))
    assert result.wrong


def test_the_stored_table_has_every_cell() -> None:
    """Of docs/results/quality.md: a new rule, proposal or tree asks for a new table."""
    stored = json.loads((ROOT / "docs/results/exactness_of_rules.json").read_text())["cells"]
    for cell in (*CONTROLS, *cells()):
        assert any(names(cell).items() <= line.items() for line in stored), f"{cell}: not stored"
