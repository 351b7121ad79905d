"""`benchmark --sweep`: a cell is measured once, whatever interrupts;
tables and pictures show it.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image
from small import Sizes, write_checkpoint

import main
from configs.schema import CLASSIFIER
from eval.bench import sweep as module
from eval.bench.quality import QUALITIES
from eval.metrics.attribute_classifier import AttributeClassifier
from eval.metrics.attributes import Labels
from runs.costs import Costs

FILE = (
    "base: adt\naxes:\n  nodes: [2, 6]\n  adt_init: [horizontal, fixed]\nmethods: eagle2:nodes=4\n"
)
CELLS = [
    f"adt:nodes={nodes}:adt_init={init}" for nodes in (2, 6) for init in ("horizontal", "fixed")
]
CELLS.append("eagle2:nodes=4")


@pytest.fixture
def sweep(checkpoint, tmp_path) -> Callable[..., int]:
    """Run the sweep of FILE in tmp_path/out; returns the exit code."""
    (tmp_path / "mine.yaml").write_text(FILE)

    def run(*words: str, model: Path = checkpoint, prompt: str = "a cat, #1") -> int:
        given = ["--sweep", str(tmp_path / "mine.yaml"), "--output_dir", str(tmp_path / "out")]
        given += [
            "--prompt",
            prompt,
            "--num_images",
            "2",
            "--model_path",
            str(model),
            "--dtype",
            "fp64",
        ]
        return main.main(
            ["benchmark", *given, "--repeats", "1", "--warmup", "0", "--device", "cpu", *words]
        )

    return run


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "out" / "sweep.jsonl").read_text().splitlines()]


def colours(path: Path) -> int:
    return len(set(Image.open(path).convert("RGB").getdata()))


def test_an_interrupted_sweep_continues_and_measures_no_cell_twice(
    sweep, tmp_path, monkeypatch, capsys
) -> None:
    measured, seen = module._measured, []

    def once_or_twice(settings, bench, method):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(method)
        return measured(settings, bench, method)

    monkeypatch.setattr(module, "_measured", once_or_twice)
    assert sweep() == 130
    assert "the same command continues where it stopped" in capsys.readouterr().err
    before = rows(tmp_path)
    assert [row["cell"] for row in before] == CELLS[:2] and not (
        tmp_path / "out" / "speed.png"
    ).exists()
    path = tmp_path / "out" / "sweep.jsonl"
    path.write_text(path.read_text() + '{"id": "cut')  # a kill in the middle of a line
    monkeypatch.setattr(
        module, "_measured", lambda *given: seen.append(given[2]) or measured(*given)
    )
    assert sweep() == 0
    assert rows(tmp_path)[:2] == before and [row["cell"] for row in rows(tmp_path)] == CELLS
    assert len(seen) == len(set(seen)) == 5
    shown = capsys.readouterr().out.splitlines()
    speeds = [row["speedup"] for row in rows(tmp_path)]
    best = rows(tmp_path)[speeds.index(max(speeds))]["cell"]
    assert shown[2].startswith("| cell | seconds per image |") and "| speed-up (95 %)" in shown[2]
    *_, last = [line for line in shown if line.startswith("|")]
    assert last.startswith(f"| {best} |")
    assert json.loads(shown[-1])["best"] == best
    assert colours(tmp_path / "out" / "speed.png") > 50
    assert sweep("--cells", "1-2") == 0 and len(seen) == 5
    assert (
        sweep("--cells", "1-2", "--seed", "1") == 0 and len(seen) == 6
    )  # other settings: other images


def test_a_row_holds_what_was_measured_together_with_ar(sweep, tmp_path) -> None:
    assert sweep("--cells", "3-4") == 0
    (row,) = rows(tmp_path)
    assert (row["cell"], row["nodes"], row["adt_init"], row["identical"]) == (
        CELLS[3],
        6,
        "fixed",
        2,
    )
    assert row["ar"]["method"] == "ar" and row["ar"]["tau"] == 1 and row["ar"]["identical"] == 2
    ratio = row["ar"]["seconds_per_image"] / row["seconds_per_image"]
    assert row["interval"]["value"] == pytest.approx(ratio) and row["interval"]["low"] is None
    assert ratio / 2 < row["speedup"] < ratio * 2 and row["speedup_low"] is None
    assert (
        row["conditions"]["images"] == 2 and len(row["conditions"]["model_path"]) == 16
    )  # of the weights, not a path


def test_counts_promise_a_speed_up_and_are_taken_once(sweep, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "costs.json").write_text(
        json.dumps({"costs": asdict(Costs((0.0, 10.0), (10.0, 20.0), 2.0))})
    )
    assert sweep("--costs", str(tmp_path / "costs.json"), "--cells", "0-4") == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all("speedup" not in row and row["mean_nodes"] <= row["nodes"] for row in rows(tmp_path))
    (tmp_path / "costs.json").write_text(
        json.dumps({"costs": asdict(Costs((0.0, 10.0), (10.0, 10.0), 0.001))})
    )
    monkeypatch.setattr(module, "_measured", lambda *_: pytest.fail("counted again"))
    assert sweep("--costs", str(tmp_path / "costs.json"), "--cells", "0-4") == 0
    second = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (
        first["promised"]
        < second["promised"]
        == pytest.approx(max(row["tau"] for row in rows(tmp_path)), rel=1e-2)
    )
    assert (
        sweep("--costs", str(tmp_path / "none.json")) == 2
        and "--costs: " in capsys.readouterr().err
    )


def test_images_are_judged_where_quality_is_asked_for(sweep, tmp_path, capsys) -> None:
    model = write_checkpoint(
        tmp_path / "model", Sizes(halvings=5)
    )  # 4 x 4 tokens, 128 x 128 pixels
    torch.manual_seed(0)
    classifier = AttributeClassifier(
        Labels(("plain",), ("blue", "red"), ("blue", "red"), ("ring", "star"))
    )
    torch.nn.init.zeros_(classifier.objects[1].bias)  # as it starts, it sees no objects
    classifier.save(model / CLASSIFIER)
    words = ("--quality", "--cells", "3-5")
    assert sweep(*words, model=model, prompt="a cat") == 2
    assert "--quality: prompt: found 'a cat'; allowed: such as" in capsys.readouterr().err
    assert sweep(*words, model=model, prompt="a red star on a plain blue background") == 0
    for row in rows(tmp_path):
        shares = [row[name] for name in QUALITIES]
        assert (
            shares == [row["ar"][name] for name in QUALITIES] and max(shares) <= 1
        )  # the same images
    assert any(row[name] > 0 for row in rows(tmp_path) for name in QUALITIES)
    assert "| background | colour | shape |" in capsys.readouterr().out
    assert colours(tmp_path / "out" / "quality.png") > 50


def test_a_full_disk_is_named_and_measured_cells_stay(sweep, tmp_path, fill_disk, capsys) -> None:
    fill_disk(tmp_path / "out" / "sweep.jsonl", writes=1)
    assert sweep("--cells", "0-2") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"error: {tmp_path}/out/sweep.jsonl: No space left on device"
    assert rows(tmp_path)[0]["cell"] == CELLS[0]


def test_a_line_of_another_program_is_refused(sweep, tmp_path, capsys) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.jsonl").write_text("hello\n{}\n")
    assert sweep() == 2
    assert "sweep.jsonl: found, in line 1, 'hello'" in capsys.readouterr().err
