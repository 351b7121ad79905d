"""`benchmark`: what it prints is what was measured, against our own baseline."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import main

METHODS = "ar,static:tree=chain,eagle2:proposal=topk,eagle2:depth=3:width=4:nodes=8,adt"


def benchmark(checkpoint: Path, *words: str) -> int:
    given = ["--prompt=a cat, #1", f"--model_path={checkpoint}", "--device=cpu", "--dtype=fp64"]
    return main.main(["benchmark", *given, *words])


@pytest.fixture(scope="module")
def document(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder, out = tmp_path_factory.mktemp("benchmark"), StringIO()
    words = (f"--methods={METHODS}", "--num_images=2", "--repeats=2", f"--output_dir={folder}")
    with redirect_stdout(out):
        assert benchmark(checkpoint, *words) == 0
    heading, blank, columns, _, *rows, last = out.getvalue().strip().splitlines()
    assert heading.endswith("; prompts: a cat, #1; temperature 1; guidance 3") and not blank
    assert columns.split(" | ")[1:3] == ["seconds per image", "tokens/s"]
    assert columns.endswith("| accepted length | speed-up (95 %) | same images |")
    names = [row.split(" | ")[0] for row in rows]
    assert names[2:4] == ["| eagle2, topk drafts", "| eagle2, depth=3, width=4, nodes=8"]
    assert all(row.startswith("(!) ") for row in rows[5:])  # what a busy machine spoilt
    assert json.loads((folder / "benchmark.json").read_text()) == json.loads(last)
    return json.loads(last)


def test_rows_fit_each_other_and_have_the_tokens_of_the_baseline(document: dict) -> None:
    rows = document["rows"]
    assert [row["method"] for row in rows] == ["ar", "static", "eagle2", "eagle2", "adt"]
    for row in rows:
        assert row["lossless"] and (row["identical"], row["near_ties"], row["wrong"]) == (2, 0, [])
        assert row["tokens_per_second"] * row["seconds_per_image"] == pytest.approx(16)
        assert row["tau"] >= 1 and 0 < row["overhead_share"] < 1
        assert (row["target_forwards"] - 1) * row["tau"] == pytest.approx(15)
        spent = row["ms_per_round"]
        assert spent["draft"] + spent["verify"] <= spent["round"] * 1.001
        assert spent["target_forward"] <= spent["verify"]
        assert row["speedup_low"] is None and row["speedup_cpu"] > 0  # four ratios
    assert 0 < rows[3]["mean_nodes"] <= 8 and rows[3]["mean_depth"] <= 3
    ar = rows[0]  # the round with the empty tree
    assert (ar["tau"], ar["speedup"], ar["target_forwards"]) == (1, 1, 16)
    assert ar["mean_nodes"] == ar["mean_depth"] == 0
    assert ar["proposal"] is None and ar["ms_per_draft_forward"] is None


def test_figures_of_an_added_baseline_are_on_disk_before_print(checkpoint, tmp_path, capsys):
    words = ("--methods=adt", "--repeats=1", "--warmup=0", "--temperature=0")
    with open("/dev/full", "w") as full, redirect_stdout(full):
        assert benchmark(checkpoint, *words, f"--output_dir={tmp_path}") == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    rows = json.loads((tmp_path / "benchmark.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["ar", "adt"] and rows[1]["identical"] == 1
