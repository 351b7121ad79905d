"""`benchmark`: what it prints is what was measured, against our own baseline."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from configs.targets import ROOT

METHODS = (
    "ar,static:tree=chain,eagle2:proposal=topk,eagle2:depth=3:width=4:nodes=8,adt:adt_init=vertical"
)


def benchmark(
    checkpoint: Path, *words: str, stdout: object = subprocess.PIPE
) -> subprocess.CompletedProcess:
    command = [sys.executable, "main.py", "benchmark", "--prompt", "a cat, #1"]
    command += ["--model_path", str(checkpoint), *words]
    return subprocess.run(
        command, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def document(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("benchmark")
    words = [
        "--methods",
        METHODS,
        "--num_images",
        "2",
        "--repeats",
        "2",
        "--dtype",
        "fp64",
        "--device",
        "cpu",
    ]
    done = benchmark(checkpoint, *words, "--output_dir", str(folder))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert lines[0].endswith("; prompts: a cat, #1; temperature 1; guidance 3") and not lines[1]
    assert lines[2].split(" | ")[1:] == [
        "seconds per image",
        "tokens/s",
        "accepted length",
        "speed-up (95 %)",
        "same images |",
    ]
    names = [line.split(" | ")[0] for line in lines[4:9]]
    assert names[2:4] == ["| eagle2, topk drafts", "| eagle2, depth=3, width=4, nodes=8"]
    assert all(line.startswith("(!) ") for line in lines[9:-1])  # what a busy machine spoilt
    assert json.loads((folder / "benchmark.json").read_text()) == json.loads(lines[-1])
    return json.loads(lines[-1])


def test_every_lossless_row_has_the_tokens_of_the_baseline(document: dict) -> None:
    assert [row["method"] for row in document["rows"]] == [
        "ar",
        "static",
        "eagle2",
        "eagle2",
        "adt",
    ]
    for row in document["rows"]:
        assert row["lossless"] and (row["identical"], row["near_ties"], row["wrong"]) == (2, 0, [])


def test_figures_fit_each_other(document: dict) -> None:
    for row in document["rows"]:
        assert row["tokens_per_second"] * row["seconds_per_image"] == pytest.approx(16)
        assert row["tau"] >= 1 and 0 < row["overhead_share"] < 1
        assert (row["target_forwards"] - 1) * row["tau"] == pytest.approx(15)
        parts = row["ms_per_round"]
        assert parts["draft"] + parts["verify"] <= parts["round"] * 1.001
        assert parts["target_forward"] <= parts["verify"]


def test_the_baseline_is_the_round_with_the_empty_tree(document: dict) -> None:
    ar = document["rows"][0]
    assert (
        ar["tau"],
        ar["mean_nodes"],
        ar["mean_depth"],
        ar["target_forwards"],
        ar["speedup"],
    ) == (1, 0, 0, 16, 1)
    assert ar["proposal"] is None and ar["ms_per_draft_forward"] is None


def test_every_two_methods_are_compared_on_the_same_images(document: dict) -> None:
    rows, pairs = document["rows"], document["pairs"]
    assert [pair["rows"] for pair in pairs] == [[i, j] for i in range(5) for j in range(i + 1, 5)]
    for pair in pairs:
        one, other = (rows[number] for number in pair["rows"])
        assert pair["tau_ratio"]["value"] == pytest.approx(other["tau"] / one["tau"])
        assert (
            min(pair["by_repeat"]) * 0.9
            <= pair["seconds_ratio"]["value"]
            <= max(pair["by_repeat"]) * 1.1
        )
        if one["method"] == "ar":
            assert min(pair["by_repeat"]) * 0.9 <= other["speedup"] <= max(pair["by_repeat"]) * 1.1
            assert other["speedup_low"] is None and other["speedup_cpu"] > 0  # four ratios
        assert pair["seconds_ratio"]["low"] is None


def test_node_budget_and_depth_are_kept(document: dict) -> None:
    small = document["rows"][3]
    assert 0 < small["mean_nodes"] <= 8 and small["mean_depth"] <= 3


def test_the_baseline_is_added_where_it_is_not_asked_for(checkpoint: Path) -> None:
    done = benchmark(
        checkpoint, "--methods", "adt", "--repeats", "1", "--warmup", "0", "--temperature", "0"
    )
    rows = json.loads(done.stdout.strip().splitlines()[-1])["rows"]
    assert [row["method"] for row in rows] == ["ar", "adt"] and rows[1]["identical"] + rows[1][
        "near_ties"
    ] == 1


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    done = benchmark(tmp_path / "nowhere")
    assert done.returncode == 2 and "--model_path" in done.stderr and "Traceback" not in done.stderr


def test_figures_are_on_disk_before_they_are_printed(checkpoint: Path, tmp_path: Path) -> None:
    words = ["--methods", "adt", "--repeats", "1", "--warmup", "0", "--output_dir", str(tmp_path)]
    with open("/dev/full", "w") as full:
        done = benchmark(checkpoint, *words, stdout=full)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert len(json.loads((tmp_path / "benchmark.json").read_text())["rows"]) == 2


def test_a_place_that_cannot_be_written_is_refused_first(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = benchmark(checkpoint, "--methods", "ar", "--output_dir", str(tmp_path / "file" / "out"))
    assert done.returncode == 2
    assert "out: found Not a directory; allowed: a folder that can be written" in done.stderr
