"""Every lossless rule, proposal and kind of tree that the settings allow; `-s`: the table.

`scripts.rules.whole_rounds` makes the stored table with four times as many images as here.
"""

import json
from collections.abc import Iterable

import pytest
from browser import ALL

from configs.schema import ROOT
from scripts.rules.whole_rounds import (
    CONTROLS,
    DRAWS,
    TARGET,
    Cell,
    cells,
    names,
    outcome,
    row,
    shared_by_cousins,
)

IMAGES = 50_000 if ALL else 4_000
# Every rule is enumerated on every tree as well, which sees more of a round. What only whole rounds
# show is which numbers they share, and a few cells do.
FEW = {"exact", "rejection", "sampled", "traversal"}, {("coupled", "pruned"), ("sampled", "chain")}
CELLS = [
    cell
    for cell in cells()
    if ALL
    or (
        cell.rule in FEW[0]
        and (cell.proposal, cell.tree) in FEW[1]
        and cell.q == ("blind" if cell.verifier.reads_distributions else "near")
    )
]
FAULTS = [c for c in CONTROLS if ALL or c.broken in (shared_by_cousins, TARGET, DRAWS)]


def apart(these: Iterable[Cell]) -> list:
    """Each cell for whichever worker is free: all of them on one would take it an hour."""
    return [pytest.param(c, marks=pytest.mark.xdist_group(f"exactness of {c}")) for c in these]


@pytest.mark.parametrize("cell", apart(CELLS), ids=str)
def test_tokens_have_the_targets_distribution(cell: Cell) -> None:
    """The joint one, and that of the tokens after a refused draft."""
    result = outcome(cell, IMAGES)
    print(row(cell, result))
    assert result.exact


@pytest.mark.parametrize("cell", apart(FAULTS), ids=str)
def test_faults_are_seen(cell: Cell) -> None:
    result = outcome(cell, IMAGES)
    print(row(cell, result))
    assert result.wrong


def test_the_stored_table_has_every_cell() -> None:
    """Of docs/results/quality.md: a new rule, proposal or tree asks for a new table."""
    stored = json.loads((ROOT / "docs/results/exactness_of_rules.json").read_text())["cells"]
    for cell in (*CONTROLS, *cells()):
        assert any(names(cell).items() <= line.items() for line in stored), f"{cell}: not stored"
