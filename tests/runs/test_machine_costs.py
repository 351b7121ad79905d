"""What a machine's rounds cost: measured once and kept; prices for policies."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from configs.schema import MethodSettings, SettingsError
from drafters.block import BlockDrafter
from drafters.eagle import EagleDrafter
from drafters.similar import SimilarDrafter
from models.base import TargetModel
from runs.cost_rounds import Round, measure_costs
from runs.costs import Costs, machine_costs
from runs.session import Session

COSTS = Costs((0.0, 2.0, 8.0), (10.0, 9.0, 15.0), 1.5)


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "adt-tree"


def test_costs_are_measured_once(home) -> None:
    calls = []

    def measure() -> Costs:
        calls.append(1)
        return COSTS

    assert machine_costs("a", measure) == machine_costs("a", measure) == COSTS
    assert len(calls) == 1 and machine_costs("b", measure) == COSTS and len(calls) == 2
    assert sorted(os.listdir(home)) == ["costs-a.json", "costs-b.json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "7",
        "[" * 100_000,
        '{"costs": 7}',
        '{"costs": {"nodes": [0, 0], "verify": [1, 2], "level": 1}}',
        '{"costs": {"nodes": [0, 1], "verify": [1, NaN], "level": 1}}',
        '{"costs": {"nodes": [0, 1], "verify": [1, 2], "level": 1, "images": 0}}',
        '{"costs": {"nodes": [0, 1], "verify": [1, 2], "level": null}}',
        '{"costs": {"nodes": [0, 1], "verify": [1, 2], "recall": -1}}',
    ],
    ids=range(10),
)
def test_a_damaged_file_is_replaced(home, capsys, content) -> None:
    home.mkdir()
    (home / "costs-a.json").write_text(content)
    assert machine_costs("a", lambda: COSTS) == COSTS
    assert "costs-a.json" in capsys.readouterr().err
    assert machine_costs("a", lambda: pytest.fail("it was kept")) == COSTS


def test_a_home_that_takes_nothing_does_not_stop_the_run(home, capsys) -> None:
    home.write_text("a file where the folder should be")
    assert machine_costs("a", lambda: COSTS) == COSTS
    assert "cannot be kept" in capsys.readouterr().err


def test_prices_never_fall() -> None:
    prices = COSTS.prices(MethodSettings("marginal", nodes=10, depth=3))
    assert prices.verify == pytest.approx((9.5, 9.5, 9.5, 10, 11, 12, 13, 14, 15, 16, 17))
    assert prices.draft == (0.0, 1.5, 3.0, 4.5)


def test_one_time_that_is_too_high_does_not_make_more_nodes_free() -> None:
    costs = Costs((0, 12, 16, 24), (10.0, 23.0, 15.0, 18.0), 1.0)
    verify = costs.verified(24)
    assert list(verify) == sorted(verify) and verify[24] > verify[16] + 1


def test_costs_of_one_batch_hold_for_others() -> None:
    """A pass is priced by its tokens: 10 ms and 0.5 ms for each here."""
    one = Costs((0.0, 7.0, 57.0), (10.5, 14.0, 39.0), 2.0, images=1, recall=0.2, block=5.0)
    eight = one.at(8)
    assert eight.images == 8 and eight.nodes == one.nodes
    assert eight.verify == pytest.approx((14.0, 10 + 0.5 * 64, 10 + 0.5 * 464))
    assert eight.level == pytest.approx(2.0 * (10 + 0.5 * 64) / 14.0)
    assert eight.recall == pytest.approx(eight.level / 10)
    assert eight.block == pytest.approx(5.0 * (10 + 0.5 * 512) / (10 + 0.5 * 64))
    back = eight.at(1)
    assert back.verify == pytest.approx(one.verify) and back.level == pytest.approx(one.level)
    assert one.at(1) is one and COSTS.at(8) is COSTS  # a file that does not say how many


def test_prices_for_a_batch_make_smaller_trees(session, tmp_path) -> None:
    path = tmp_path / "costs.json"
    costs = Costs((0.0, 7.0, 57.0), (10.5, 14.0, 39.0), 2.0, images=1)
    path.write_text(json.dumps({"costs": asdict(costs)}))
    method = MethodSettings("graft", nodes=12, window=6, prices=str(path))
    for images in (1, 8):
        policy = session.open_engine(method, images=images).speculation.policy
        assert policy.prices == costs.at(images).prices(method)


DEAR = Costs((0.0, 8.0), (10.0, 15.0), 2.0, recall=0.25, block=6.0)


@pytest.mark.parametrize(
    ("method", "draft"),
    [
        (MethodSettings("marginal", depth=3), (0, 2, 4, 6)),
        (MethodSettings("graft", depth=2), (0, 2, 4)),
        (MethodSettings("similar", depth=3, size="priced"), (0, 0.25, 0.5, 0.75)),
        (MethodSettings("graft_similar", depth=3), (0, 2.25, 4.5, 6.75)),
        (MethodSettings("graft_similar", depth=4, head_depth=2), (0, 2.25, 4.5, 4.75, 5)),
        (MethodSettings("graft_similar", depth=2, head_depth=9), (0, 2.25, 4.5)),
        (MethodSettings("block", depth=3, size="priced"), (0, 6.25, 6.5, 6.75)),
    ],
    ids=lambda value: value.method if isinstance(value, MethodSettings) else "",
)
def test_a_level_costs_what_it_asks(method, draft) -> None:
    assert DEAR.prices(method).draft == pytest.approx(draft)
    older = replace(DEAR, recall=None, block=None)
    assert older.prices(method).draft == tuple(2.0 * levels for levels in range(len(draft)))
    one_pass = [0.0, *(6.0 + 0.25 * levels for levels in range(1, len(draft)))]
    assert DEAR.prices(method, one_pass=True).draft == pytest.approx(one_pass)


def test_costs_of_another_drafter_are_refused() -> None:
    alone = replace(DEAR, level=None, block=None)
    assert alone.prices(MethodSettings("similar", depth=1)).draft == (0.0, 0.25)
    for method, name in (("marginal", "level"), ("block", "block")):
        with pytest.raises(SettingsError, match=f"--prices.* without {name}; .*--method {method}"):
            alone.prices(MethodSettings(method))


def test_other_work_on_the_machine_does_not_count(session, monkeypatch) -> None:
    """The second of three turns takes five times as long."""
    turns = []

    def timed(engine, jobs):
        tree = engine.speculation
        turns.append(tree)
        nodes = tree.policy.largest.nodes if tree else 0
        slow = 5.0 if len(turns) in range(13, 25) else 1.0
        draft = {EagleDrafter: 6.0, SimilarDrafter: 1.5, BlockDrafter: 8.5}
        spent = draft[type(tree.drafter)] if tree else 0.0
        return [Round(nodes, slow * (10 + nodes), slow * spent, 3 if tree else 0)] * 3

    monkeypatch.setattr("runs.cost_rounds.timed_rounds", timed)
    costs = measure_costs(session.open_engine, [], 3, session.drafter.network)
    assert len(turns) == 36 and (costs.level, costs.recall, costs.block) == (2.0, 0.5, 7.0)
    assert costs.verify == tuple(10.0 + nodes for nodes in costs.nodes) and len(costs.nodes) == 10


def test_a_session_without_a_drafter_prices_what_it_recalls(home, session: Session) -> None:
    method = MethodSettings("similar", size="priced", nodes=8)
    alone = replace(session, drafter=None)
    policy = alone.open_engine(method).speculation.policy
    assert len(policy.prices.verify) == 9 and 0 < policy.prices.draft[1] < policy.prices.draft[2]
    assert alone.find_costs(method).level is None
    (path,) = home.iterdir()
    with pytest.raises(SettingsError, match="--prices.* without level"):
        session.open_engine(MethodSettings("marginal", prices=str(path)))


def test_a_session_measures_under_a_distribution_that_cuts_nothing(home, session: Session) -> None:
    policy = session.open_engine(MethodSettings("graft", nodes=12, window=6)).speculation.policy
    assert len(policy.prices.verify) == 13 and all(time > 0 for time in policy.prices.verify)
    assert policy.prices.draft[1] > 0 and len(os.listdir(home)) == 1
    again = session.open_engine(MethodSettings("marginal", nodes=12)).speculation.policy
    assert again.prices.verify == policy.prices.verify
    assert again.prices.draft[:2] == policy.prices.draft and len(os.listdir(home)) == 1


def test_a_file_of_prices_that_is_none_is_refused(session, tmp_path) -> None:
    with pytest.raises(SettingsError, match="--prices: .*nowhere.json"):
        session.open_engine(MethodSettings("marginal", prices=str(tmp_path / "nowhere.json")))


class OnCuda:
    """A target that says it lies on a GPU."""

    device = torch.device("cuda")

    def __init__(self, target: TargetModel):
        self.target = target

    def __getattr__(self, name: str):
        return getattr(self.target, name)


def test_replayed_rounds_are_not_priced(home, session: Session, tmp_path) -> None:
    """They take as long for any tree, so nothing is measured and trees keep their largest size."""
    session = replace(session, target=OnCuda(session.target))
    (tmp_path / "costs.json").write_text(json.dumps({"costs": asdict(COSTS)}))
    own = MethodSettings("graft"), MethodSettings("graft", prices=str(tmp_path / "costs.json"))

    def priced(compile: str) -> list[bool]:
        settings = replace(session.settings, compile=compile, device="auto")
        found = replace(session, settings=settings)
        return [found.tables(method).prices is not None for method in own]

    assert priced("auto") == [False, True] and priced("on") == [False, False]
    assert not home.exists()
    with pytest.raises(SettingsError, match=r"--prices: .*replayed"):
        replace(session.settings, compile="on", method=own[1], device="cuda")
