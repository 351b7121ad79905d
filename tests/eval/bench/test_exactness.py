"""Comparison of images, and the grid of laws, methods and batches on a small checkpoint."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from configs.methods import METHODS
from configs.schema import MethodSettings, SamplingSettings, SettingsError
from decoding.cache import KVCache
from decoding.flight import FinishedImage, Job
from decoding.noise import gumbel, image_seed
from decoding.sampling import SamplingDistribution
from eval.bench.exactness import Comparison, compare, gap
from models.base import Context, ImageGrid, ImageVocab, PromptRows, TransformerSpec
from scripts.tools import exactness_grid
from scripts.tools.exactness_grid import Cell, cells_of, conclude, run_cells, shares


class TableTarget:
    """A target whose logits at every position are a given row."""

    spec = TransformerSpec(
        vocab=9, hidden=4, intermediate=4, layers=1, heads=1, kv_heads=1, max_positions=32
    )
    grid, vocab, device = ImageGrid(2, 2), ImageVocab(4, 5), torch.device("cpu")

    def __init__(self, logits: list[float], dtype: torch.dtype = torch.float32):
        self.logits, self.dtype = torch.tensor(logits, dtype=dtype), dtype

    def prompt(self, text: str, guidance: int) -> PromptRows:
        return PromptRows(
            torch.zeros(guidance, 3, dtype=torch.long), torch.zeros(guidance, dtype=torch.long)
        )

    def read(self, prompt: PromptRows, context: Context) -> Tensor:
        return self.features(prompt.ids, context)

    def features(self, ids: Tensor, context: Context) -> Tensor:
        return torch.zeros(*ids.shape, 4)

    def score(self, features: Tensor) -> Tensor:
        return self.logits.expand(*features.shape[:2], -1)


CELLS = 6 * (1 + 2 * 14)  # laws, plain decoding in a batch, batch sizes times methods
GREEDY = SamplingDistribution(temperature=0.0, cfg=1.0)
JOB = Job("a", "a cat", 3)


def image(*codes: int) -> FinishedImage:
    return FinishedImage(JOB, torch.tensor(codes), 4, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_equal_images() -> None:
    target = TableTarget([0.0] * 5)
    assert compare(target, GREEDY, [image(1, 2, 3, 4)], [image(1, 2, 3, 4)]) == Comparison(
        1, 1, 0, ()
    )


def test_a_near_tie_counts_in_fp32_and_never_in_fp64() -> None:
    logits = [0.0, 5.0, 5.0 - 1e-5, 0.0, 0.0]
    pair = [image(1, 1, 1, 1)], [image(1, 1, 2, 1)]
    assert compare(TableTarget(logits), GREEDY, *pair) == Comparison(1, 0, 1, ())
    assert compare(TableTarget(logits, torch.float64), GREEDY, *pair) == Comparison(1, 0, 0, ("a",))


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
    distribution = SamplingDistribution(temperature=0.5, cfg=1.0)
    target = TableTarget(((3.0 - noise) / 2).tolist(), torch.float64)
    assert gap(target, distribution, image(1, 1, 4, 1), torch.tensor([1, 1, 0])) == pytest.approx(
        0, abs=1e-9
    )
    lower = TableTarget((3.0 - noise).tolist(), torch.float64)
    expected = abs(float(((3.0 - noise) * 2 + noise)[[0, 4]].diff()))
    assert gap(lower, distribution, image(1, 1, 4, 1), torch.tensor([1, 1, 0])) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("distribution", "logits"),
    [
        (SamplingDistribution(top_k=2, cfg=1.0), [9.0, 4.0, 4.0 - 1e-5, -9.0, -9.0]),
        (
            SamplingDistribution(top_p=0.8, cfg=1.0),
            torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04]).log().tolist(),
        ),
    ],
    ids=["top-k", "top-p"],
)
def test_tokens_at_a_boundary_of_the_distribution(distribution, logits) -> None:
    """Token 2 is kept or cut by a hair; where it is emitted instead of another one, that explains it."""
    target = TableTarget(logits, torch.float64)
    assert gap(target, distribution, image(0, 0, 0, 0), torch.tensor([2])) < 1e-4
    assert gap(target, distribution, image(3, 0, 0, 0), torch.tensor([0])) > 1e-3


def jobs(count: int) -> list[Job]:
    words = ("a cat", "two large dogs", "fog", "a red circle", "é, #1")
    return [Job(str(i), words[i % 5], image_seed(0, words[i % 5], 0, i // 5)) for i in range(count)]


def test_small_grid_in_fp64(session) -> None:
    """No difference at all, whatever law, tree, proposal, batch."""
    lines = list(run_cells(session, shares(cells_of("small", 24), jobs(4), thin=False)))
    assert len(lines) == CELLS
    assert [line for line in lines if line["identical"] != 4] == []
    assert conclude(lines)["passed"]
    assert all((line["tau"] > 1) == (line["method"] != "ar") for line in lines)


def test_part_of_the_grid_in_fp32(session32) -> None:
    cells = [
        cell
        for cell in cells_of("small", 24)
        if cell.batch == 3 and cell.method.proposal == "coupled"
    ]
    lines = list(run_cells(session32, shares(cells, jobs(5), thin=False)))
    assert conclude(lines)["passed"], lines


def test_a_wrong_engine_fails_the_grid(session, monkeypatch) -> None:
    """The control: a cache that forgets to move accepted tokens is found."""
    monkeypatch.setattr(KVCache, "keep", lambda self, path, counts: self.advance(counts))
    cells = [cell for cell in cells_of("small", 24) if cell.method.method == "eagle2"][:2]
    lines = list(run_cells(session, shares(cells, jobs(4), thin=False)))
    assert not conclude(lines)["passed"]


def test_a_thin_grid_has_every_cell_and_in_every_distribution_every_image(session) -> None:
    cells, images = cells_of("full", 1024), jobs(40)
    work = shares(cells, images, thin=True)
    assert len(work) == len(cells) and {cell for cell, _ in work} == set(cells)
    assert len({cell.distribution for cell, _ in work[:20]}) == 6
    assert all(len(share) == (1 if cell.batch == 1 else 4) for cell, share in work)
    for distribution in {cell.distribution for cell in cells}:
        assert {
            job for cell, share in work if cell.distribution == distribution for job in share
        } == set(images)
    lines = list(run_cells(session, shares(cells_of("small", 24)[-4:], jobs(5), thin=True)))
    assert (
        sorted((line["batch"], line["images"], line["identical"]) for line in lines)
        == [(1, 1, 1)] * 2 + [(3, 4, 4)] * 2
    )


def test_full_grid_has_every_policy_and_proposal() -> None:
    cells = cells_of("full", 1024)
    assert len({cell.id for cell in cells}) == len(set(cells)) == len(cells)
    assert {(d.temperature, d.top_k > 0, d.top_p < 1, d.cfg) for d in (cell.distribution for cell in cells)} == {
        (1.0, False, False, 1.0), (1.0, True, True, 1.0), (1.0, False, False, 3.0), (1.0, True, True, 3.0),
        (0.0, False, False, 1.0), (0.0, False, False, 3.0),
    }  # fmt: skip
    plain = {(cell.method.method, cell.method.proposal, cell.batch) for cell in cells}
    drafted = {
        (m, p, batch) for m in METHODS if m != "ar" for p in ("topk", "coupled") for batch in (1, 3)
    }
    assert plain == {("ar", None, 3), *drafted}
    adaptive = {
        (m.adt.init, m.adt.adapt, m.proposal)
        for m in (cell.method for cell in cells)
        if m.method == "adt"
    }
    assert len(adaptive) == 4 * 4 * 2
    with pytest.raises(SettingsError, match="small, full"):
        cells_of("medium", 1024)


def line(images: int, near_ties: int = 0, wrong: tuple[str, ...] = ()) -> dict[str, object]:
    cell = Cell(SamplingSettings(), MethodSettings(), 1)
    return cell.line(Comparison(images, images - near_ties - len(wrong), near_ties, wrong), 2.0)


def test_the_statement_allows_one_near_tie_in_a_hundred() -> None:
    assert conclude([line(100, near_ties=1)])["passed"]
    assert not conclude([line(100, near_ties=1), line(10, near_ties=1)])["passed"]
    assert not conclude([line(100, wrong=("7",))])["passed"]
    assert not conclude([])["passed"]


def test_the_command_continues_its_report(checkpoint, tmp_path, capsys) -> None:
    def run() -> list[dict]:
        exactness_grid.exactness_grid(
            model_path=str(checkpoint),
            prompts=1,
            seeds=2,
            report=str(tmp_path / "new" / "report.jsonl"),
        )
        return [json.loads(text) for text in capsys.readouterr().out.splitlines()]

    first = run()
    assert len(first) == CELLS + 1 and first[-1]["passed"] and first[-1]["images"] == 2 * CELLS
    assert {
        "temperature",
        "method",
        "proposal",
        "adt_init",
        "batch",
        "tau",
        "identical",
        "wrong",
    } <= set(first[-2])
    report = tmp_path / "new" / "report.jsonl"
    texts = report.read_text().splitlines(keepends=True)
    report.write_text("".join(texts[:-2]) + texts[-2][:20])  # killed in the middle of a line
    assert [line["id"] for line in run()[:-1]] == [line["id"] for line in first[-3:-1]]
    assert len(run()) == 1, "nothing is left to do"
    with pytest.raises(SettingsError, match="--report.*the same run"):
        exactness_grid.exactness_grid(
            model_path=str(checkpoint), prompts=2, seeds=2, report=str(report)
        )


def test_the_command_fails_when_an_image_differs(checkpoint, capsys, monkeypatch) -> None:
    monkeypatch.setattr(exactness_grid, "run_cells", lambda *_: iter([line(2, wrong=("00000_1",))]))
    with pytest.raises(SystemExit) as stop:
        exactness_grid.exactness_grid(model_path=str(checkpoint), prompts=1)
    assert stop.value.code == 1
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert lines[0]["wrong"] == ["00000_1"] and not lines[1]["passed"]


def test_the_command_refuses_what_proves_nothing(checkpoint) -> None:
    with pytest.raises(SettingsError, match="--dtype.*fp64"):
        exactness_grid.exactness_grid(model_path=str(checkpoint), dtype="bf16")
