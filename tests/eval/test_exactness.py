"""Comparison of images, and the grid of laws, methods and batches on a small checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from configs.schema import MethodSettings, SamplingSettings, SettingsError
from decoding.flight import FinishedImage, Job
from decoding.noise import gumbel, image_seed
from decoding.sampling import SamplingLaw
from eval import exactness_grid
from eval.exactness import Agreement, compare, gap
from eval.exactness_grid import Cell, Grid, conclude, grid_of, run_grid
from models.base import ImageGrid, ImageVocab, PromptRows
from models.transformer import Context, TransformerSpec


class TableTarget:
    """A target whose logits at every position are a given row."""

    spec = TransformerSpec(vocab=9, hidden=4, intermediate=4, layers=1, heads=1, kv_heads=1, max_positions=32)
    grid, vocab, device = ImageGrid(2, 2), ImageVocab(4, 5), torch.device("cpu")

    def __init__(self, logits: list[float], dtype: torch.dtype = torch.float32):
        self.logits, self.dtype = torch.tensor(logits, dtype=dtype), dtype

    def prompt(self, text: str, guidance: int) -> PromptRows:
        return PromptRows(torch.zeros(guidance, 3, dtype=torch.long), torch.zeros(guidance, dtype=torch.long))

    def features(self, ids: Tensor, context: Context) -> Tensor:
        return torch.zeros(*ids.shape, 4)

    def score(self, features: Tensor) -> Tensor:
        return self.logits.expand(*features.shape[:2], -1)


CELLS = 6 * (1 + 2 * 8)  # laws, plain decoding in a batch, batch sizes times methods
GREEDY = SamplingLaw(temperature=0.0, cfg=1.0)
JOB = Job("a", "a cat", 3)


def image(*codes: int) -> FinishedImage:
    return FinishedImage(JOB, torch.tensor(codes), 4, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_equal_images() -> None:
    target = TableTarget([0.0] * 5)
    assert compare(target, GREEDY, [image(1, 2, 3, 4)], [image(1, 2, 3, 4)]) == Agreement(1, 1, 0, ())


def test_a_near_tie_counts_in_fp32_and_never_in_fp64() -> None:
    logits = [0.0, 5.0, 5.0 - 1e-5, 0.0, 0.0]
    pair = [image(1, 1, 1, 1)], [image(1, 1, 2, 1)]
    assert compare(TableTarget(logits), GREEDY, *pair) == Agreement(1, 0, 1, ())
    assert compare(TableTarget(logits, torch.float64), GREEDY, *pair) == Agreement(1, 0, 0, ("a",))


def test_another_token_than_the_tied_one_is_wrong() -> None:
    """Two tokens tie, but a third was emitted."""
    target = TableTarget([0.0, 5.0, 5.0 - 1e-5, 0.0, 0.0])
    assert compare(target, GREEDY, [image(1, 1, 1, 1)], [image(1, 1, 3, 1)]).wrong == ("a",)


def test_only_the_first_difference_is_judged() -> None:
    target = TableTarget([0.0, 5.0, 5.0 - 1e-5, 0.0, 0.0])
    assert compare(target, GREEDY, [image(1, 1, 1, 1)], [image(1, 2, 3, 0)]).near_ties == 1
    assert compare(target, GREEDY, [image(1, 1, 1, 1)], [image(1, 3, 2, 1)]).wrong == ("a",)


def test_gap_counts_the_noise_and_the_temperature() -> None:
    """With noise, two tokens tie whose perturbed values are equal, whatever their logits."""
    noise = gumbel(JOB.seed, "target", torch.tensor([2]), 5)[0]
    law = SamplingLaw(temperature=0.5, cfg=1.0)
    target = TableTarget(((3.0 - noise) / 2).tolist(), torch.float64)
    assert gap(target, law, image(1, 1, 4, 1), torch.tensor([1, 1, 0])) == pytest.approx(0, abs=1e-9)
    lower = TableTarget((3.0 - noise).tolist(), torch.float64)
    expected = abs(float(((3.0 - noise) * 2 + noise)[[0, 4]].diff()))
    assert gap(lower, law, image(1, 1, 4, 1), torch.tensor([1, 1, 0])) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("law", "logits"),
    [
        (SamplingLaw(top_k=2, cfg=1.0), [9.0, 4.0, 4.0 - 1e-5, -9.0, -9.0]),
        (SamplingLaw(top_p=0.8, cfg=1.0), torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04]).log().tolist()),
    ],
    ids=["top-k", "top-p"],
)
def test_tokens_at_a_boundary_of_the_law(law, logits) -> None:
    """Token 2 is kept or cut by a hair; where it is emitted instead of another one, that explains it."""
    target = TableTarget(logits, torch.float64)
    assert gap(target, law, image(0, 0, 0, 0), torch.tensor([2])) < 1e-4
    assert gap(target, law, image(3, 0, 0, 0), torch.tensor([0])) > 1e-3


def jobs(count: int) -> list[Job]:
    words = ("a cat", "two large dogs", "fog", "a red circle", "é, #1")
    return [Job(str(i), words[i % 5], image_seed(0, words[i % 5], 0, i // 5)) for i in range(count)]


def test_small_grid_in_fp64(session) -> None:
    """No difference at all, whatever law, tree, proposal, batch."""
    cells = list(run_grid(session, grid_of("small", 24), jobs(4)))
    assert len(cells) == CELLS
    assert [cell.line() for cell in cells if cell.agreement.identical != 4] == []
    assert conclude(cells, "fp64")["passed"]
    drafted = [cell.tau for cell in cells if cell.method.drafted]
    assert min(drafted) > 1 and all(cell.tau == 1 for cell in cells if not cell.method.drafted)


def test_part_of_the_grid_in_fp32(session32) -> None:
    grid = grid_of("small", 24)
    cells = list(run_grid(session32, Grid(grid.laws[1:4:2], grid.methods[::2], (3,)), jobs(5)))
    assert conclude(cells, "fp32")["passed"], [cell.line() for cell in cells]


def test_a_wrong_engine_fails_the_grid(session, monkeypatch) -> None:
    """The control: a cache that forgets to move accepted tokens is found."""
    from decoding.cache import KVCache

    monkeypatch.setattr(KVCache, "keep", lambda self, path, counts: self.advance(counts))
    grid = grid_of("small", 24)
    cells = list(run_grid(session, Grid(grid.laws[:1], grid.methods[2:3], (1,)), jobs(4)))
    assert not conclude(cells, "fp64")["passed"]


def test_full_grid_has_every_policy_and_proposal() -> None:
    grid = grid_of("full", 1024)
    assert {(law.temperature, law.top_k > 0, law.top_p < 1, law.cfg) for law in grid.laws} == {
        (1.0, False, False, 1.0), (1.0, True, True, 1.0), (1.0, False, False, 3.0), (1.0, True, True, 3.0),
        (0.0, False, False, 1.0), (0.0, False, False, 3.0),
    }  # fmt: skip
    plain = {(m.method, m.proposal) for m in grid.methods}
    assert plain == {(method, p) for method in ("static", "eagle2", "adt") for p in ("topk", "coupled")}
    adaptive = {(m.adt.init, m.adt.adapt, m.proposal) for m in grid.methods if m.method == "adt"}
    assert len(adaptive) == 4 * 4 * 2 and len(set(grid.methods)) == len(grid.methods)
    assert grid.batches == (1, 3)
    with pytest.raises(SettingsError, match="small, full"):
        grid_of("medium", 1024)


def test_the_statement_in_fp32_allows_one_near_tie_in_a_hundred(session) -> None:
    grid = grid_of("small", 24)

    def cell(agreement: Agreement) -> Cell:
        return Cell(grid.laws[0], grid.methods[0], 1, agreement, 2.0)

    good = cell(Agreement(100, 99, 1, ()))
    assert conclude([good], "fp32")["passed"]
    assert not conclude([good, replace(good, agreement=Agreement(10, 9, 1, ()))], "fp32")["passed"]
    assert not conclude([replace(good, agreement=Agreement(100, 99, 0, ("7",)))], "fp32")["passed"]
    assert not conclude([], "fp32")["passed"]


def test_the_command(checkpoint, capsys) -> None:
    exactness_grid.exactness_grid(model_path=str(checkpoint), prompts=1, seeds=2, device="cpu")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == CELLS + 1 and lines[-1]["passed"] and lines[-1]["images"] == 2 * CELLS
    assert {"temperature", "method", "proposal", "adt_init", "batch", "tau", "identical", "wrong"} <= set(lines[-2])


def test_the_command_fails_when_an_image_differs(checkpoint, capsys, monkeypatch) -> None:
    wrong = Cell(SamplingSettings(), MethodSettings(), 1, Agreement(2, 1, 0, ("00000_1",)), 2.0)
    monkeypatch.setattr(exactness_grid, "run_grid", lambda *_: iter([wrong]))
    with pytest.raises(SystemExit) as stop:
        exactness_grid.exactness_grid(model_path=str(checkpoint), prompts=1, device="cpu")
    assert stop.value.code == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["wrong"] == ["00000_1"] and not lines[1]["passed"]


def test_the_command_refuses_what_proves_nothing(checkpoint) -> None:
    with pytest.raises(SettingsError, match="--dtype.*fp64"):
        exactness_grid.exactness_grid(model_path=str(checkpoint), dtype="bf16")
