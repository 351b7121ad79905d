"""The table of all drafters: one command, each row measured once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small import randomised, small_settings, write_checkpoint

from configs.command_line import listed_method
from drafters.exit import ExitHead
from drafters.training.heads import export
from eval.bench import sweep as module
from runs.costs import Costs
from runs.session import open_session
from scripts.tools.all_drafters import all_drafters
from scripts.tools.drafter_rows import DRAFTERS, HEADS, PRICED, parts_of


def test_rows_have_the_number_of_nodes_that_they_are_listed_under() -> None:
    for nodes, lines in (*DRAFTERS.items(), *HEADS.items()):
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
    (own,) = parts_of("similar,block", "58,priced", None, Path("out"))
    lines = own.lines
    assert [(line.nodes, line.name) for line in lines] == [
        ("58", "similar"), ("58", "block"), ("priced", "similar"), ("priced", "block"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="--nodes: found '17'; allowed: 16, 58, priced"):
        all_drafters(nodes="17")


def test_a_method_without_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="--methods: found 'similar,ar'; allowed: jacobi, ngram"):
        all_drafters(methods="similar,ar")


def write_exit(model: Path, folder: Path) -> Path:
    """Write a head after the first layer of a small checkpoint's target; returns its folder."""
    target = open_session(small_settings(model)).target
    head = randomised(ExitHead(replace(target.spec, layers=1)), 5)
    config = json.loads((model / "drafter/config.json").read_text())
    export(head, config | {"drafter": "exit", "num_hidden_layers": 1}, folder, target, 1.0)
    return folder


def test_heads_have_rows_in_the_same_table(tmp_path, capsys) -> None:
    folder, model = tmp_path / "out", write_checkpoint(tmp_path / "model")
    exit_head = write_exit(model, tmp_path / "exit")

    def table(**more: str) -> list[dict]:
        all_drafters(
            output=str(folder), prompt="a red dot", methods="adt,marginal", nodes="16,priced",
            heads=f"early exit={exit_head}, again={model / 'drafter'}", model_path=str(model),
            dtype="fp64", images=1, **more,
        )  # fmt: skip
        return json.loads((folder / "table.json").read_text())["rows"]

    rows = table()
    shown = [line.split(" | ")[0][2:] for line in capsys.readouterr().out.splitlines()[3:]]
    names = [
        "adt", "marginal", "marginal", "early exit: adt", "early exit: marginal", "again: adt",
        "again: marginal",
    ]  # fmt: skip
    assert [row["drafts"] for row in rows] == names * 2
    assert [row["most_nodes"] for row in rows[:4]] == ["16", "16", "priced", "16"]
    assert [name for name in shown if name in names] == names * 2
    assert [row["identical"] for row in rows] == [1] * 14
    # the target's own drafter, by whatever name, drafts alike and is measured once
    assert rows[5]["tau"] == rows[0]["tau"] != rows[3]["tau"]
    assert (rows[5]["id"] == rows[0]["id"]) and rows[3]["id"] != rows[0]["id"]
    assert len(list(folder.glob("costs*.json"))) == 3
    lines = (folder / "sweep.jsonl").read_text()
    assert table() == rows and (folder / "sweep.jsonl").read_text() == lines


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("work/a", "--heads: found 'work/a'; allowed: name=folder with different names"),
        ("a=x,a=y", "--heads: found 'a=x,a=y'; allowed: name=folder with different names"),
        ("a=nowhere", "--heads"),
    ],
)
def test_heads_that_are_not_there(heads, message) -> None:
    with pytest.raises(ValueError, match=message):
        all_drafters(heads=heads)


def test_heads_without_a_row(tmp_path) -> None:
    with pytest.raises(ValueError, match="--heads: found .a=x.; allowed: with some of"):
        parts_of(None, "58", "a=x", tmp_path)
