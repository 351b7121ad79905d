"""Folders that revision 9f14fc4 wrote (tests/data) go on with today's code."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import main
from drafters.training.shards import Tokens
from support.json_files import numbered_lines, read_lines

DATA = Path(__file__).parents[1] / "data" / "revision_9f14fc4"
PLACE = ["--model_path=checkpoint", "--device=cpu"]
IMAGES = ["--prompt=a red cat", "--seed=3", "--dtype=fp64", *PLACE]
RUN = ["generate_images", *IMAGES, "--method=adt", "--trace", "--output_dir=run"]
TOKENS = ["extract_tokens", "--from_prompts", "--seed=5", "--dtype=fp64", "--output_dir=tokens"]
TRAINING = [
    "train_drafter", "--tokens=tokens", "--start_from=checkpoint/drafter", "--steps=4",
    "--batch_size=4", "--holdout=4", "--eval_images=1", "--save_every=2", "--log_every=1",
    "--output_dir=training", *PLACE,
]  # fmt: skip


@pytest.fixture(autouse=True)
def old(tmp_path, monkeypatch) -> Path:
    shutil.copytree(DATA, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def records(folder: str) -> dict[str, dict]:
    return {line["id"]: line for line in read_lines(Path(folder) / "records.jsonl")}


def drawn(folder: str) -> list[tuple]:
    """What is drawn: the prompt, seed and tokens of every image."""
    names = ("prompt", "seed", "tokens_sha256")
    return [tuple(record[name] for name in names) for record in records(folder).values()]


def test_a_run_continues(old, capsys):
    before = records("run")
    pictures = {path.name: path.read_bytes() for path in (old / "run/img").iterdir()}
    assert main.main([*RUN, "--num_images=2"]) == 0
    assert "2 images in run/img (0 new)" in capsys.readouterr().out
    manifest = json.loads((old / "run/run.json").read_text())
    manifest["identity"]["calibration"] = "1.2/1.1"  # whatever it was
    (old / "run/run.json").write_text(json.dumps(manifest))
    assert main.main([*RUN, "--num_images=3"]) == 0
    assert "3 images in run/img (1 new)" in capsys.readouterr().out
    after = records("run")
    assert {name: after[name] for name in before} == before
    assert "image_sha256" in after["00000_2"]
    assert all((old / "run/img" / name).read_bytes() == found for name, found in pictures.items())
    assert {line["id"] for line in read_lines(old / "run/trace.jsonl")} == after.keys()
    manifest = json.loads((old / "run/run.json").read_text())
    assert [command["revision"][:7] for command in manifest["earlier"]] == ["9f14fc4"]


def test_the_same_images_are_drawn_today():
    """By other trees, whose nodes were chosen by other estimates."""
    assert main.main([*RUN[:-1], "--num_images=2", "--output_dir=anew"]) == 0
    assert drawn("anew") == drawn("run")


def test_a_run_is_evaluated(old):
    words = ["--report_dir=report", "--cache_dir=features", "--device=cpu", "--ref_dir=run/img"]
    assert main.main(["evaluate", "--output_dir=run", *words]) == 0
    found = json.loads((old / "report/evaluation.json").read_text())
    assert found["speed"][0]["images"] == 2
    assert not [text for text in found["remarks"] if "left out" in text]


def test_tokens_are_added_to(old, capsys):
    before = Tokens.read("tokens")
    assert main.main([*TOKENS, *PLACE, "--num_images=26"]) == 0
    assert "26 images in tokens (2 new)" in capsys.readouterr().out
    after = Tokens.read("tokens")
    shared = [after.ids.index(name) for name in before.ids]
    assert (after.codes(shared) == before.codes(range(len(before)))).all()


def test_a_training_continues_to_the_same_drafter(old):
    assert main.main(TRAINING) == 0
    finished, log = (
        {line["step"]: line["loss"] for _, line in numbered_lines(path, "step") if "loss" in line}
        for path in (old / "finished_log.jsonl", old / "training/log.jsonl")
    )
    assert log == pytest.approx(finished, rel=1e-3) and log[2] == finished[2]
    ours, theirs = (
        load_file(Path(place) / "drafter/model.safetensors") for place in ("training", "")
    )
    assert all((ours[name] - theirs[name]).abs().max() < 1e-2 for name in theirs)


def test_a_trained_drafter_decodes_what_ar_decodes():
    assert Path("drafter/calibration.json").exists(), "which drafters had; it is not read"
    for method, flags in (("ar", []), ("adt", ["--drafter_path=drafter"])):
        words = ["generate_images", *IMAGES, f"--method={method}", "--num_images=3", *flags]
        assert main.main([*words, f"--output_dir={method}"]) == 0
    assert drawn("ar") == drawn("adt")
    assert all(each["tau"] > 1 for each in records("adt").values())
