"""The exactness check: cells of distributions, methods and batch sizes on a small checkpoint."""

from __future__ import annotations

import json

import pytest

from configs.method_table import METHODS
from configs.schema import MethodSettings, SamplingSettings, SettingsError
from decoding.cache import KVCache
from decoding.flight import Job
from decoding.noise import image_seed
from eval.bench.exactness import Comparison
from scripts.tools import check_exactness
from scripts.tools.check_exactness import Cell, cells_of, conclude, run_cells, shares

CELLS = 6 * (1 + 2 * 14)  # distributions x (plain decoding in a batch + batch sizes x methods)


def jobs(count: int) -> list[Job]:
    words = ("a cat", "two large dogs", "fog", "a red circle", "é, #1")
    return [Job(str(i), words[i % 5], image_seed(0, words[i % 5], 0, i // 5)) for i in range(count)]


def test_the_small_cells_in_fp64(session) -> None:
    """No difference at all, whatever the distribution, tree, proposal or batch."""
    lines = list(run_cells(session, shares(cells_of("small", 24), jobs(4), thin=False)))
    assert len(lines) == CELLS
    assert [line for line in lines if line["identical"] != 4] == []
    assert conclude(lines)["passed"]
    assert all((line["tau"] > 1) == (line["method"] != "ar") for line in lines)


def test_some_of_the_cells_in_fp32(session32) -> None:
    cells = [
        cell
        for cell in cells_of("small", 24)
        if cell.batch == 3 and cell.method.proposal == "coupled"
    ]
    lines = list(run_cells(session32, shares(cells, jobs(5), thin=False)))
    assert conclude(lines)["passed"], lines


def test_a_wrong_engine_is_found(session, monkeypatch) -> None:
    """A cache that does not move accepted tokens is found."""
    monkeypatch.setattr(KVCache, "move", lambda self, path: None)
    cells = [cell for cell in cells_of("small", 24) if cell.method.method == "eagle2"][:2]
    lines = list(run_cells(session, shares(cells, jobs(4), thin=False)))
    assert not conclude(lines)["passed"]


def test_thin_cells_together_decode_every_image_in_every_distribution(session) -> None:
    cells, images = cells_of("full", 1024), jobs(40)
    work = shares(cells, images, thin=True)
    assert len(work) == len(cells) and {cell for cell, _ in work} == set(cells)
    assert len({cell.distribution for cell, _ in work[:30]}) == 6
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


def test_the_full_cells_have_every_policy_and_proposal() -> None:
    cells = cells_of("full", 1024)
    assert len({cell.id for cell in cells}) == len(set(cells)) == len(cells)
    found = {
        (d.temperature, d.top_k > 0, d.top_p < 1, d.cfg)
        for d in (cell.distribution for cell in cells)
    }
    warm = {(1.0, cut, cut, cfg) for cut in (False, True) for cfg in (1.0, 3.0)}
    assert found == warm | {(0.0, False, False, cfg) for cfg in (1.0, 3.0)}
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


def test_one_near_tie_in_a_hundred_images_is_allowed() -> None:
    assert conclude([line(100, near_ties=1)])["passed"]
    assert not conclude([line(100, near_ties=1), line(10, near_ties=1)])["passed"]
    assert not conclude([line(100, wrong=("7",))])["passed"]
    assert not conclude([])["passed"]


def test_the_command_continues_its_report(checkpoint, tmp_path, capsys) -> None:
    def run() -> list[dict]:
        check_exactness.check_exactness(
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
        check_exactness.check_exactness(
            model_path=str(checkpoint), prompts=2, seeds=2, report=str(report)
        )


def test_the_command_fails_when_an_image_differs(checkpoint, capsys, monkeypatch) -> None:
    monkeypatch.setattr(
        check_exactness, "run_cells", lambda *_: iter([line(2, wrong=("00000_1",))])
    )
    with pytest.raises(SystemExit) as stop:
        check_exactness.check_exactness(model_path=str(checkpoint), prompts=1)
    assert stop.value.code == 1
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert lines[0]["wrong"] == ["00000_1"] and not lines[1]["passed"]


def test_the_command_refuses_what_proves_nothing(checkpoint) -> None:
    with pytest.raises(SettingsError, match="--dtype.*fp64"):
        check_exactness.check_exactness(model_path=str(checkpoint), dtype="bf16")
