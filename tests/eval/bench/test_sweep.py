"""`benchmark --sweep`: a cell is measured once, whatever interrupts; table and pictures show it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import main
from eval.bench import sweep as module
from support.json_files import read_lines

FILE = """base: adt
axes:
  nodes: [2, 6]
  adt_init: [horizontal, fixed]
methods: eagle2:nodes=4
"""
CELLS = [f"adt:nodes={nodes}:adt_init={i}" for nodes in (2, 6) for i in ("horizontal", "fixed")]
CELLS.append("eagle2:nodes=4")


@pytest.fixture
def sweep(checkpoint, tmp_path) -> Callable[..., int]:
    """Run the sweep of FILE in tmp_path/out; returns the exit code."""
    (tmp_path / "mine.yaml").write_text(FILE)

    def run(*words: str, model: Path = checkpoint, prompt: str = "a cat, #1") -> int:
        given = {"sweep": tmp_path / "mine.yaml", "output_dir": tmp_path / "out", "prompt": prompt}
        given |= {"num_images": 2, "model_path": model, "dtype": "fp64", "device": "cpu"}
        given |= {"repeats": 1, "warmup": 0}
        flags = [f"--{name}={value}" for name, value in given.items()]
        return main.main(["benchmark", *flags, *words])

    return run


def rows(folder: Path) -> list[dict]:
    return read_lines(folder / "out" / "sweep.jsonl")


def test_an_interrupted_sweep_measures_no_cell_twice(sweep, tmp_path, monkeypatch, capsys) -> None:
    measured, seen = module._measured, []
    limit = 2

    def counted(settings, bench, method, progress):
        if len(seen) == limit:
            raise KeyboardInterrupt
        seen.append(method)
        return measured(settings, bench, method, progress)

    monkeypatch.setattr(module, "_measured", counted)
    assert sweep() == 130
    assert "the same command continues where it stopped" in capsys.readouterr().err
    before, path = rows(tmp_path), tmp_path / "out" / "sweep.jsonl"
    assert [row["cell"] for row in before] == CELLS[:2] and not path.with_name("speed.png").exists()
    path.write_text(path.read_text() + '{"id": "cut')  # a kill in the middle of a line
    limit = 9
    assert sweep() == 0
    assert rows(tmp_path)[:2] == before and [row["cell"] for row in rows(tmp_path)] == CELLS
    assert len(seen) == len(set(seen)) == 5
    shown = capsys.readouterr().out.splitlines()
    best = max(rows(tmp_path), key=lambda row: row["speedup"])["cell"]
    assert shown[2].startswith("| cell | seconds per image |") and "| speed-up (95 %)" in shown[2]
    assert [text for text in shown if text.startswith("|")][-1].startswith(f"| {best} |")
    assert json.loads(shown[-1])["best"] == best
    picture = Image.open(tmp_path / "out" / "speed.png").convert("RGB")
    assert len(set(picture.getdata())) > 50
    assert sweep("--cells=1-2") == 0 and len(seen) == 5
    assert sweep("--cells=1-2", "--seed=1") == 0 and len(seen) == 6  # another seed: other images


def test_a_row_holds_what_was_measured_together_with_ar(sweep, tmp_path) -> None:
    assert sweep("--cells=3-4") == 0
    (row,) = rows(tmp_path)
    assert (row["cell"], row["nodes"], row["adt_init"]) == (CELLS[3], 6, "fixed")
    assert row["ar"]["method"] == "ar" and row["ar"]["tau"] == 1
    assert row["identical"] == row["ar"]["identical"] == row["conditions"]["images"] == 2
    ratio = row["ar"]["seconds_per_image"] / row["seconds_per_image"]
    assert ratio / 2 < row["speedup"] < ratio * 2 and row["speedup_low"] is None
    assert len(row["conditions"]["model_path"]) == 16  # of the weights, not a path


def test_a_file_of_another_program_is_named(sweep, tmp_path, capsys) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.jsonl").write_text("hello\n{}\n")
    assert sweep() == 2
    words = "sweep.jsonl, line 1: expected lines that this program wrote, got 'hello'"
    assert words in capsys.readouterr().err
