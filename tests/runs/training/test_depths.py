"""`--layers auto`: the depth of an early exit follows hits and prices, and a folder keeps it."""

import json
from pathlib import Path

import pytest
import torch
from small import Sizes, write_checkpoint
from test_train import CPU, flags, open_training, run, write_tokens

from configs.fields import SettingsError
from decoding.sampling import SamplingDistribution
from drafters.training.agreement import draft_distributions, expected_hits, target_distribution
from drafters.training.exit_fit import fit_exits, shares_of
from drafters.training.exits import enter
from runs.commands import train_settings
from runs.costs import Costs
from runs.training import depths as module
from runs.training.depths import candidates, promise, report
from runs.training.estimate import estimate_table
from runs.training.tokens import read_tokens
from support.crew import Crew

HITS = (0.5, 0.4)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of four layers, `model`, with `tokens`."""
    root = tmp_path_factory.mktemp("depths")
    write_checkpoint(root / "model", Sizes(layers=4))
    return write_tokens(root / "tokens", "tiny", root / "model", (4, 4)).parent


def costs(level: float, node: float = 0.0) -> Costs:
    return Costs((0.0, 1.0, 8.0), (10.0, 10.0 + node, 10.0 + 8 * node), level, 1)


def test_a_promise_is_tokens_over_milliseconds_of_the_best_chain() -> None:
    short = promise(1, HITS, costs(level=2.0))
    assert (short.nodes, short.tau) == (1, pytest.approx(1.5))
    assert short.speedup == pytest.approx(1.5 / 12 * 10)
    long = promise(1, HITS, costs(level=0.5))
    assert (long.nodes, long.tau) == (2, pytest.approx(1.7))
    assert long.speedup == pytest.approx(1.7 / 11 * 10)
    assert promise(1, HITS, costs(level=0.5, node=4.0)).nodes == 1


def test_depths_that_are_weighed() -> None:
    assert candidates(2) == (1,)
    assert candidates(5) == (1, 2, 3, 4)
    assert candidates(16) == (1, 2, 4, 8)
    assert candidates(48) == (1, 2, 4, 8, 16)
    with pytest.raises(
        SettingsError, match="--layers: found 'auto'; allowed: a target of at least"
    ):
        candidates(1)


def given_prices(monkeypatch: pytest.MonkeyPatch, levels: tuple[float, ...]) -> None:
    """Depths 1, 2 and 3 hit ever more often; their levels have these prices."""
    hits = [(0.3, 0.2), (0.5, 0.4), (0.9, 0.8)]
    monkeypatch.setattr(module, "fitted_hits", lambda *_: hits)
    monkeypatch.setattr(module, "chain_costs", lambda *_: [costs(price) for price in levels])


@pytest.mark.parametrize(
    ("levels", "taken", "said"),
    [
        ((0.1, 9.0, 30.0), 1, "for 1.3"),
        ((0.1, 0.2, 0.3), 3, "for 2.4"),
        ((9.0, 1.0, 30.0), 2, "for 1.4"),
        ((50.0, 40.0, 30.0), 3, "no depth promises more than plain decoding, and this is the best"),
    ],
)
def test_the_depth_follows_the_prices(levels, taken, said, deep, tmp_path, monkeypatch, capsys):
    given_prices(monkeypatch, levels)
    run(deep, tmp_path / "out", drafter="exit", layers="auto", steps=1, dtype="fp64")
    config = json.loads((tmp_path / "out/drafter/config.json").read_text())
    assert config["num_hidden_layers"] == taken
    shown = capsys.readouterr().err
    assert f"--layers auto: {taken}, " in shown and said in shown
    assert "| 2 | 0.500 0.400 | " in shown


def test_a_folder_keeps_its_depth(deep, tmp_path, monkeypatch) -> None:
    """Also one that stopped before its first checkpoint, or goes on by the number."""
    given_prices(monkeypatch, (9.0, 1.0, 30.0))
    settings = train_settings(flags(deep, tmp_path, drafter="exit", layers="auto"))
    tokens = read_tokens(settings)
    assert module.with_depth(settings, tokens, Crew(CPU)).layers == 2
    given_prices(monkeypatch, (0.1, 9.0, 30.0))
    run(deep, tmp_path, drafter="exit", layers="auto", steps=2)
    assert json.loads((tmp_path / "drafter/config.json").read_text())["num_hidden_layers"] == 2
    run(deep, tmp_path, drafter="exit", layers=2, steps=2)
    found = json.loads((tmp_path / "depth.json").read_text())
    assert [each["layers"] for each in found["depths"]] == [1, 2, 3] and found["layers"] == 2
    (tmp_path / "depth.json").write_text('{"layers": "two"}')
    with pytest.raises(SettingsError, match="depth.json: layers: found 'two'; allowed: a number"):
        module.with_depth(settings, tokens, Crew(CPU))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_hits_and_prices_are_measured(dtype, deep, tmp_path) -> None:
    run(deep, tmp_path, drafter="exit", layers="auto", steps=1, dtype=dtype)
    found = json.loads((tmp_path / "depth.json").read_text())
    for each in found["depths"]:
        assert all(0 < hit <= 1 for hit in each["hits"]) and each["level"] > 0
        assert 1 < each["tau"] < 1 + each["nodes"] and each["speedup"] > 0
    best = max(found["depths"], key=lambda each: each["speedup"])
    assert found["layers"] == best["layers"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "--layers: found 'auto'; allowed: 1 to 16 with --drafter eagle; auto with --drafter"),
        ({"drafter": "block"}, "allowed: 1 to 16 with --drafter block; auto with --drafter exit"),
        ({"drafter": "exit", "start_from": "x"}, "allowed: 1 to 16 with --start_from, whose head"),
        (
            {"drafter": "exit", "layers": "most"},
            "found 'most'; allowed: auto, or a whole number at",
        ),
        (
            {"drafter": "exit", "layers": 17},
            "found 17; allowed: auto, or a whole number at least 1",
        ),
    ],
)
def test_where_no_depth_is_chosen(more, message, deep, tmp_path) -> None:
    with pytest.raises(SettingsError, match=message):
        train_settings(flags(deep, tmp_path, **{"layers": "auto"} | more))


def test_what_a_training_needs_is_known_before_its_depth(deep, tmp_path) -> None:
    tables = []
    for layers in ("auto", 3):
        settings = train_settings(flags(deep, tmp_path, drafter="exit", layers=layers))
        tables.append(estimate_table(settings, read_tokens(settings)))
    assert tables[0] == tables[1]


def test_a_head_begins_by_least_squares(deep, tmp_path) -> None:
    """Whatever the shares of its images; its predictions are those of the closed form."""
    training = open_training(deep, tmp_path, drafter="exit", layers=2, dtype="fp64")
    target, head = training.target, training.lessons.head
    rows, images = training.lessons.rows, training.lessons.images
    whole = rows(images, None)
    read = whole.features[:, whole.prompt - 1 : -1].float()
    hidden = head.norm(enter(target, 2, whole)[:, whole.prompt :].float())
    one = torch.ones_like(read[..., :1])
    inputs = torch.cat([hidden, read, one], -1).flatten(0, 1).double()
    wanted = whole.features[:, whole.prompt :].flatten(0, 1).double()
    best = torch.linalg.lstsq(inputs, wanted).solution
    left = (inputs @ best - wanted).square().mean()
    predicted = head(hidden, read).flatten(0, 1)
    assert (predicted - wanted).square().mean() < 1.001 * left < wanted.square().mean() / 4
    before = head.fc.weight.clone()
    fit_exits([head], target, [whole])
    torch.testing.assert_close(head.fc.weight, before, atol=1e-4, rtol=1e-3)
    assert len(list(shares_of(rows, images))) == len(images) / 4


def test_hits_without_noise_are_shares_of_equal_choices(deep, tmp_path) -> None:
    training = open_training(deep, tmp_path, drafter="exit", layers=1)
    target, head = training.target, training.lessons.head
    rows = training.lessons.rows([0, 1], None)
    greedy = SamplingDistribution(temperature=0.0)
    with torch.no_grad():
        p = target_distribution(target, rows, greedy).argmax(-1)
        q = draft_distributions(target, head, rows, greedy, 2)
    shares = [(p[:, k:] == each.argmax(-1)).float().mean().item() for k, each in enumerate(q)]
    assert expected_hits(target, head, rows, greedy, 2).tolist() == pytest.approx(shares)


def test_a_report_names_the_best() -> None:
    found = [promise(1, HITS, costs(2.0)), promise(4, HITS, costs(20.0))]
    lines = report(found, found[0]).splitlines()
    assert lines[2] == "| 1 | 0.500 0.400 | 2.00 | 1 | 1.50 | 1.25 |"
    assert (
        lines[-1] == "--layers auto: 1, for 1.25 times the tokens per millisecond of plain decoding"
    )
