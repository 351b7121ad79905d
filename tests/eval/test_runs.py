"""Run folders as evaluate reads them: what is wrong in one is named, and the rest is used."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import read_records, write_records, write_run
from PIL import Image

from configs.fields import SettingsError
from eval.runs import read_reference, read_run, read_runs

GREY = [np.full((8, 8, 3), 30 * number, dtype=np.uint8) for number in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", GREY, [f"prompt {n}" for n in range(4)])


def test_images_stand_with_their_own_prompts_whatever_the_order(folder):
    write_records(folder, read_records(folder)[::-1])
    run = read_run(str(folder), "run")
    pairs = dict(zip([path.stem for path in run.images.paths], run.images.prompts, strict=True))
    assert pairs == {f"0000{n}_0": f"prompt {n}" for n in range(4)}
    assert run.images.left_out == ()


def test_faults_are_named_and_the_rest_is_used(folder):
    (folder / "img/00000_0.png").write_bytes(b"no image")
    (folder / "img/00001_0.png").unlink()
    Image.fromarray(GREY[0]).save(folder / "img/00009_0.png")
    lines = read_records(folder)
    poor = {name: value for name, value in lines[2].items() if name != "seconds"} | {"id": "00004_0"}
    write_records(folder, [*lines, lines[3] | {"tokens_sha256": "other"}, lines[2], poor])
    run = read_run(str(folder), "run")
    assert list(run.records) == ["00002_0"] and len(run.images) == 1
    assert sorted(run.images.left_out) == [
        "00000_0: an image that cannot be read (UnidentifiedImageError)",
        "00001_0: a record without an image",
        "00003_0: an id with two different records",
        "00004_0: a record without seconds",
        "00009_0.png: an image without a record",
    ]


def test_a_cut_image_is_left_out(folder):
    path = folder / "img/00002_0.png"
    path.write_bytes(path.read_bytes()[:-30])
    assert "00002_0: an image that cannot be read (OSError)" in read_run(str(folder), "run").images.left_out


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda folder: (folder / "run.json").unlink(), "no run.json"),
        (lambda folder: (folder / "run.json").write_text("[]"), "indices must be integers"),
        (lambda folder: (folder / "records.jsonl").write_text("nothing\n{}\n\n"), "line 1 is not one"),
        (lambda folder: (folder / "records.jsonl").write_text(""), "no image that can be used"),
    ],
)
def test_folders_without_a_run_are_refused(folder, spoil, found):
    spoil(folder)
    with pytest.raises(SettingsError, match=rf"--output_dir .*found.* {found}.*allowed"):
        read_run(str(folder), "run")


def test_runs_of_the_same_folder_name_are_told_apart(tmp_path):
    one, other = (write_run(tmp_path / name / "ar", GREY[:1], ["p"]) for name in ("one", "other"))
    assert [run.name for run in read_runs([str(one), str(other)])] == ["one/ar", "other/ar"]
    assert [run.name for run in read_runs([str(one)])] == ["ar"]


def test_reference_folders(tmp_path):
    (tmp_path / "deep").mkdir()
    Image.fromarray(GREY[1]).save(tmp_path / "deep/a.JPG", "JPEG")
    (tmp_path / "b.png").write_bytes(b"")
    images = read_reference(str(tmp_path))
    assert [path.name for path in images.paths] == ["a.JPG"] and len(images.left_out) == 1
    (tmp_path / "none").mkdir()
    with pytest.raises(SettingsError, match="--ref_dir .*found no image"):
        read_reference(str(tmp_path / "none"))


def test_traces_belong_to_images(folder):
    lines = [{"id": "00001_0", "round": n, "position": n, "accepted": 0} for n in range(2)]
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(read_run(str(folder), "run").trace) == ["00001_0"]
