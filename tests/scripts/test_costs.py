"""What rounds cost: measured, kept in a file, turned into a predicted speed-up."""

import json
from dataclasses import asdict

import pytest
from small import write_checkpoint

from runs.cost_rounds import BUDGETS
from runs.costs import Costs
from scripts.tools.costs import costs as measure

COSTS = Costs((0.0, 2.0, 10.0), (10.0, 14.0, 30.0), 2.0)


def test_a_method_without_drafts_has_speed_up_one_and_nodes_cost() -> None:
    plain = {"tau": 1.0, "target_forwards": 256.0, "mean_nodes": 0.0, "draft_forwards": 0}
    assert COSTS.speedup(plain | {"method": "ar"}) == 1
    half = {"tau": 2.0, "target_forwards": 128.5, "mean_nodes": 6.0, "draft_forwards": 255}
    half |= {"method": "graft_similar"}
    assert COSTS.speedup(half) == pytest.approx(255 * 10 / (127.5 * 22 + 255 * 2))


@pytest.mark.parametrize(
    ("method", "forwards", "draft"),
    [
        ("ar", 0, 0.0),
        ("jacobi", 0, 0.0),
        ("similar", 0, 500 * 0.25),
        ("graft_similar", 100, 100 * 2 + 500 * 0.25),
        ("marginal", 500, 500 * 2),
        ("block", 100, 100 * 6 + 500 * 0.25),
    ],
)
def test_a_promise_knows_what_the_levels_asked(method, forwards, draft) -> None:
    """500 levels in 100 rounds."""
    costs = Costs((0.0, 2.0, 10.0), (10.0, 14.0, 30.0), 2.0, recall=0.25, block=6.0)
    row = {"method": method, "tau": 2.0, "target_forwards": 101.0, "mean_nodes": 6.0}
    row |= {"draft_forwards": forwards, "levels": 500}
    assert costs.speedup(row) == pytest.approx(2 * 10 / (22 + draft / 100))


def test_costs_are_measured_written_and_read(tmp_path, capsys) -> None:
    write_checkpoint(tmp_path / "model")
    output, model = tmp_path / "new" / "costs.json", str(tmp_path / "model")
    measure(output=str(output), prompt="a red dot", repeats=2, model_path=model, dtype="fp64")
    found = Costs.read(output)
    assert json.loads(capsys.readouterr().out)["costs"]["level"] == found.level > 0
    assert (
        found.nodes[0] == 0
        and len(found.nodes) == len(BUDGETS) + 1
        and found.nodes[-1] <= BUDGETS[-1]
    )
    assert found.round(3, 2.5) == pytest.approx(found.round(3) + 2.5)
    assert min(found.recall, found.block) > 0


def test_trees_larger_than_any_measured_cost_more() -> None:
    assert COSTS.round(20, 2.0) == 30 + 10 * 2 + 2


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
