"""The sweep: its cells, its counts, its prediction, and that it continues instead of counting again."""

import json
from dataclasses import asdict

import pytest
from small import write_checkpoint

from configs.fields import SettingsError
from eval.costs import BUDGETS, Costs
from scripts import sweep as module
from scripts.costs import costs as measure
from scripts.sweep import cells, predicted, sweep


def test_cells_are_all_combinations() -> None:
    assert cells("adt:proposal=topk", "nodes=4|8,adt_d_max=5") == [
        "adt:proposal=topk:nodes=4:adt_d_max=5",
        "adt:proposal=topk:nodes=8:adt_d_max=5",
    ]


COSTS = Costs((0.0, 2.0, 10.0), (10.0, 14.0, 30.0), 2.0)


def test_a_method_without_drafts_has_speed_up_one_and_nodes_cost() -> None:
    plain = {"tokens": 255, "rounds": 255.0, "nodes": 0.0, "levels": 0}
    assert predicted(plain, COSTS) == 1
    half = {"tokens": 255, "rounds": 127.5, "nodes": 6.0, "levels": 255}
    assert predicted(half, COSTS) == pytest.approx(255 * 10 / (127.5 * 22 + 255 * 2))


def test_costs_are_measured_written_and_read(tmp_path, capsys) -> None:
    write_checkpoint(tmp_path / "model")
    output, model = tmp_path / "new" / "costs.json", str(tmp_path / "model")
    measure(output=str(output), prompt="a red dot", repeats=2, model_path=model, dtype="fp64")
    found = Costs.read(output)
    assert json.loads(capsys.readouterr().out)["costs"]["level"] == found.level > 0
    assert found.nodes[0] == 0 and len(found.nodes) == len(BUDGETS) + 1 and found.nodes[-1] <= BUDGETS[-1]
    assert found.round(3, 2) == pytest.approx(found.round(3, 0) + 2 * found.level)


def test_trees_larger_than_any_measured_cost_more() -> None:
    assert COSTS.round(20, 1) == 30 + 10 * 2 + 2


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": [0, 2]},
        {"nodes": [0, 10, 2]},
        {"nodes": [1, 2, 10]},
        {"level": 0},
        {"level": float("nan")},
        {"verify": None},
    ],
)
def test_damaged_costs_are_refused(tmp_path, change) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"costs": asdict(COSTS) | change}))
    with pytest.raises(ValueError, match=r"costs\.json"):
        Costs.read(path)


def test_a_sweep_counts_each_cell_once(tmp_path, monkeypatch, capsys) -> None:
    write_checkpoint(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("a red dot\nblue squares\n")
    settings = {"grid": "nodes=2|6", "prompt": str(tmp_path / "prompts.txt"), "images": 2}
    (tmp_path / "costs.json").write_text(json.dumps({"costs": asdict(COSTS)}))
    places = {"model_path": str(tmp_path / "model"), "report": str(tmp_path / "sweep.jsonl")}
    places["costs"] = str(tmp_path / "costs.json")
    sweep(**settings, **places, part="0/2")
    sweep(**settings, **places, part="1/2")
    capsys.readouterr()
    monkeypatch.setattr(module, "counts", lambda *_: pytest.fail("counted again"))
    sweep(**settings, **places)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["cell"] for row in rows} == {"adt:nodes=2", "adt:nodes=6"}
    assert rows[0]["predicted"] <= rows[1]["predicted"] and all(1 <= row["tau"] <= 16 for row in rows)
    assert all(row["nodes"] <= int(row["cell"][-1]) for row in rows)


@pytest.mark.parametrize(
    "flags",
    [
        {"grid": "nodes"},
        {"grid": "nodes=8|x"},
        {"part": "2/2"},
        {"part": "1"},
        {"part": 1},
        {"costs": (12.5, 0.6)},
        {"costs": "/none.json"},
    ],
)
def test_bad_values_are_refused_by_name_before_anything_is_loaded(flags, monkeypatch) -> None:
    monkeypatch.setattr(module, "open_session", lambda *_: pytest.fail("loaded"))
    with pytest.raises(SettingsError, match=f"--{next(iter(flags))}|--nodes"):
        sweep(**flags)
