"""`--dry_run`: a command says what it would do, refuses what it can, and writes nothing."""

import json
import os
import re
import shlex
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from made_runs import write_run

import main
from configs.schema import ROOT
from models.codecs.codebook import load_table, table_path

IMAGE = np.zeros((16, 16, 3), np.uint8)
MODEL = "--model_path model --device cpu"


@pytest.fixture(autouse=True)
def place(checkpoint, tmp_path, monkeypatch) -> Path:
    """A working folder with a small model and a run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint, tmp_path / "model")
    write_run(tmp_path / "run", [IMAGE], ["a cat"])
    return tmp_path


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.name != ".lock"}


def dry(words: str) -> int:
    return main.main([*shlex.split(words), "--dry_run"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            f"generate_images --prompt 'a cat' --num_images 3 --output_dir out {MODEL}",
            ["generating with adt (tiny) into out/img", "3 images: 0 done, 3 to do", "memory: "],
        ),
        (
            f"benchmark --prompt 'a cat' --methods ar,jacobi --repeats 2 --output_dir out {MODEL}",
            ["measuring jacobi next to ar, 2 times each", "4 images: 0 done, 4 to do", "not timed"],
        ),
        (
            f"tune --prompt 'a cat' --methods jacobi --minutes 2 --output out/t.yaml {MODEL}",
            [
                "trying jacobi next to ar, with 1, 2, 4 and so on images at once, for at most 2",
                "out/t.measurements.jsonl would be",
            ],
        ),
        (
            "evaluate --output_dir run --metrics fid,accuracy --cache_dir cache",
            ["fid would be skipped: it needs real", "1 image: 0 done", "computing accuracy of"],
        ),
    ],
)
def test_a_command_says_what_it_would_do_and_writes_nothing(words, said, place, capsys) -> None:
    if "evaluate" in words:  # of another model than tiny
        path = place / "run" / "run.json"
        document = json.loads(path.read_text())
        document["settings"]["model"] = "anole"
        path.write_text(json.dumps(document))
    before = files(place)
    assert dry(words) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("would be ") and all(text in shown for text in said), shown
    assert shown.endswith("dry run: nothing was loaded, generated or written\n")
    assert "GiB free in " in shown and files(place) == before


def test_what_is_done_is_counted_and_other_settings_are_refused(capsys) -> None:
    given = f"--method jacobi --prompt 'a cat' --output_dir out {MODEL}"
    assert main.main(shlex.split(f"generate_images {given} --num_images 1")) == 0
    assert dry(f"generate_images {given} --num_images 3") == 0
    assert "3 images: 1 done, 2 to do" in capsys.readouterr().out
    assert dry(f"generate_images {given} --num_images 3 --cfg 2") == 2
    assert "a run with other settings: --cfg" in capsys.readouterr().err
    given = f"--methods jacobi --prompt 'a cat' --repeats 1 --output_dir bench {MODEL}"
    assert main.main(shlex.split(f"benchmark {given}")) == 0
    with Path("bench/measurements.jsonl").open("a") as file:
        file.write('{"id": "which another process is wri')
    before = Path("bench/measurements.jsonl").read_bytes()
    assert dry(f"benchmark {given} --num_images 3") == 0
    assert "6 images: 2 done, 4 to do" in capsys.readouterr().out
    assert Path("bench/measurements.jsonl").read_bytes() == before


def test_a_benchmark_says_how_long_by_what_was_measured_beside_it(place, capsys) -> None:
    given = f"--prompt 'a cat' --repeats 1 --warmup 0 {MODEL}"
    assert main.main(shlex.split(f"benchmark {given} --methods ar --output_dir out/T1")) == 0
    path = place / "out/T1/measurements.jsonl"
    line = json.loads(path.read_text())
    line["images"][0]["seconds"] = 7.5
    path.write_text(json.dumps(line))
    (other := place / "out/of another program").mkdir()
    (other / "measurements.jsonl").write_text('{"seconds": 1}\nmore\n')
    more = f"benchmark {given} --methods jacobi --num_images 32"
    for folder, others, said in (
        ("out/T0", "--temperature 0.5", "7.5 s an image by ar: 8 min if every method"),
        ("out/other", "--cfg 2", "ar is not timed yet"),
        ("elsewhere/T0", "", "ar is not timed yet"),
    ):
        assert dry(f"{more} --output_dir {folder} {others}") == 0
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("generate_images --prompt x --output_dir file/out", "--output_dir file/out: expected a w"),
        ("benchmark --prompt x --methods eagle2:proposal=topk:verifier=lantern", "--lantern_k: "),
        ("tune --prompt none.txt", "--prompt none.txt: "),
        ("train_drafter --tokens none --output_dir out", "--tokens: expected .*about.json"),
        ("evaluate --output_dir none", "--output_dir none: "),
        ("generate_images --prompt x --model_path damaged", "damaged: target .*model.safetensors"),
    ],
)
def test_what_cannot_be_done_is_refused(words, said, place, capsys) -> None:
    (place / "file").write_text("")
    (damaged := place / "damaged").mkdir()
    for path in (place / "model").iterdir():
        (damaged / path.name).symlink_to(path)
    (damaged / "model.safetensors").unlink()
    (damaged / "model.safetensors").write_bytes(b"damaged")
    model = "" if "model_path" in words or "evaluate" in words else MODEL
    before = files(place)
    assert dry(f"{words} {model}") == 2
    error = capsys.readouterr().err
    assert re.search(said, error) and error.count("error: ") == 1, error
    assert files(place) == before


def test_a_narrow_table_and_a_full_disk_are_refused(place, monkeypatch, capsys) -> None:
    model = f"{ROOT}/ckpts/tiny"
    for path in Path(model).iterdir():
        if path.name != "vq_distances":
            (place / "model2").mkdir(exist_ok=True)
            (place / "model2" / path.name).symlink_to(path)
    (place / "model2/vq_distances").mkdir()
    table = load_table(table_path(Path(model), 1024), 1024, 100)
    np.save(table_path(place / "model2", 1024, 100), table)
    rows = f"--methods {ROOT}/configs/paper/lantern.yaml"
    assert dry(f"benchmark --prompt x {rows} --model_path model2 --device cpu") == 0
    rows += f",{ROOT}/configs/paper/lantern_published.yaml"
    assert dry(f"benchmark --prompt x {rows} --model_path model2 --device cpu") == 2
    assert "101" in capsys.readouterr().err
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1000))
    assert dry(f"generate_images --prompt x --output_dir out {MODEL}") == 2
    assert "--output_dir out: expected a disk with more space, got 1.0 KiB free" in (
        capsys.readouterr().err
    )
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert dry(f"generate_images --prompt x --output_dir out {MODEL}") == 2
    assert "got a folder that may not be written" in capsys.readouterr().err
