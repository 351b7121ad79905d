"""The table of all drafters: one command, each row measured once."""

import json
from pathlib import Path

import pytest
from small import write_checkpoint

from configs.method_flags import listed_method
from eval.bench import sweep as module
from runs.costs import Costs
from scripts.tools.all_drafters import DRAFTERS, PRICED, _chosen, all_drafters


def test_rows_have_the_number_of_nodes_that_they_are_listed_under() -> None:
    for nodes, lines in DRAFTERS.items():
        for entry in lines.values():
            method = listed_method(entry, {})
            assert (method.size == PRICED) == (nodes == PRICED)
            assert str(method.nodes or method.window) == nodes or nodes == PRICED


def test_one_command_makes_the_table_and_goes_on_where_it_stopped(
    tmp_path, capsys, monkeypatch
) -> None:
    folder, model = tmp_path / "out", write_checkpoint(tmp_path / "model")
    measured, seen = module._measured, []

    def table(methods: str, most: int = 99) -> str:
        def counted(settings, bench, method):
            if len(seen) == most:
                raise KeyboardInterrupt
            seen.append(method)
            return measured(settings, bench, method)

        monkeypatch.setattr(module, "_measured", counted)
        all_drafters(
            output=str(folder), prompt="a red dot", methods=methods, model_path=str(model),
            dtype="fp64", images=1,
        )  # fmt: skip
        return capsys.readouterr().out

    with pytest.raises(KeyboardInterrupt):
        table("similar", most=4)
    costs = (folder / "costs.json").read_text()
    shown = table("similar,jacobi")
    assert len(seen) == 12 and (folder / "costs.json").read_text() == costs
    rows = json.loads((folder / "table.json").read_text())["rows"]
    assert [(row["most_nodes"], row["method"], row["temperature"]) for row in rows] == [
        (nodes, method, temperature)
        for temperature in (1.0, 0.0)
        for nodes, method in (
            ("16", "jacobi"), ("16", "similar"), ("58", "jacobi"), ("58", "similar"),
            ("priced", "jacobi"), ("priced", "similar"),
        )
    ]  # fmt: skip
    assert {row["prices"] for row in rows} == {None}  # what the machine takes
    assert [row["identical"] for row in rows] == [1] * 12
    found = Costs.read(Path(folder / "costs.json"))
    assert [row["promised"] for row in rows] == [found.speedup(row) for row in rows]
    lines = [line for line in shown.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 * (2 + 1 + 6) and (folder / "table.md").read_text() == shown
    assert lines[2].startswith("| ar | 0 | 0.0 | 0.0 | 1.00 | 0.0 | ")
    assert table("similar,jacobi") == shown and len(seen) == 12


def test_some_budgets_alone() -> None:
    lines = _chosen("similar,block", "58,priced")
    assert [(line.nodes, line.name) for line in lines] == [
        ("58", "similar"), ("58", "block"), ("priced", "similar"), ("priced", "block"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="--nodes: found '17'; allowed: 16, 58, priced"):
        all_drafters(nodes="17")


def test_a_method_without_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="--methods: found 'similar,ar'; allowed: jacobi, ngram"):
        all_drafters(methods="similar,ar")
