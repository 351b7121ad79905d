"""Run folders as evaluate reads them: what is wrong in one is named, and the rest is used."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import rounds_of, settings_of, write_records, write_run
from PIL import Image

from configs.evaluation import EvaluateSettings
from configs.fields import SettingsError
from eval.metrics.base import Unavailable
from eval.report.run import accepted_by_position, read_maps, read_reference, read_run, read_runs
from support.json_lines import read_lines

GREY = [np.full((8, 8, 3), 30 * number, dtype=np.uint8) for number in range(6)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", GREY, [f"prompt {n}" for n in range(6)])


def test_images_stand_with_their_own_prompts_whatever_the_order(folder):
    write_records(folder, read_lines(folder / "records.jsonl")[::-1])
    run = read_run(str(folder), "run")
    pairs = dict(zip([path.stem for path in run.images.paths], run.images.prompts, strict=True))
    assert pairs == {f"0000{n}_0": f"prompt {n}" for n in range(6)}
    assert run.images.left_out == ()


def test_faults_are_named_before_the_networks_and_the_rest_is_used(folder):
    (folder / "img/00000_0.png").write_bytes(b"no image")
    (folder / "img/00001_0.png").unlink()
    (folder / "img/00004_0.png").write_bytes(b"")
    cut = folder / "img/00005_0.png"
    cut.write_bytes(cut.read_bytes()[:-30])
    Image.fromarray(GREY[0]).save(folder / "img/00009_0.png")
    lines = read_lines(folder / "records.jsonl")
    poor = lines[2] | {"id": "00006_0", "seconds": None}
    write_records(folder, [*lines, lines[3] | {"tokens_sha256": "other"}, lines[2], poor])
    run = read_run(str(folder), "run")
    assert list(run.records) == ["00002_0"] and len(run.images) == 1
    assert sorted(run.images.left_out) == [
        "00000_0: an image that cannot be read (UnidentifiedImageError)",
        "00001_0: a record without an image",
        "00003_0: an id with two different records",
        "00004_0: an empty file (download it again)",
        "00005_0: an image that cannot be read (OSError)",
        "00006_0: a record without seconds",
        "00009_0.png: an image without a record",
    ]


def test_an_image_that_was_exchanged_is_left_out(folder):
    pictures = sorted((folder / "img").iterdir())
    pictures[2].write_bytes(pictures[3].read_bytes())
    left_out = read_run(str(folder), "run").images.left_out
    assert left_out == ("00002_0: another image than the one that was saved",)


def test_what_is_no_run_is_refused_by_its_own_flag(folder, tmp_path):
    missing = str(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="^--baseline .*nowhere: .*got a path that does not ex"):
        read_runs([str(folder), missing], missing)
    (folder / "records.jsonl").write_text("nothing\n{}\n\n")
    with pytest.raises(SettingsError, match="--output_dir .*got no image that can be used"):
        read_run(str(folder), "run")
    for settings, found in (("5", "got no settings"), ('{}, "identity": {}', "got --model None")):
        (folder / "run.json").write_text(f'{{"settings": {settings}, "earlier": []}}')
        with pytest.raises(SettingsError, match=rf"^--output_dir.*run.json: .*{found}"):
            read_run(str(folder), "run")
    (folder / "run.json").unlink()
    (folder / "run.json").mkdir()
    with pytest.raises(SettingsError, match="--output_dir .*expected .*got no run.json"):
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
    (tmp_path / "deep/a.JPG").unlink()
    with pytest.raises(Unavailable, match="no image in .* can be read"):
        read_reference(str(tmp_path))
    with pytest.raises(SettingsError, match="--ref_dir .*got no image"):
        read_reference(str(tmp_path / "none"))


def test_reference_folders_may_be_links(tmp_path):
    (tmp_path / "disk").mkdir()
    Image.fromarray(GREY[1]).save(tmp_path / "disk/a.png")
    (tmp_path / "real").mkdir()
    (tmp_path / "real/linked").symlink_to(tmp_path / "disk")
    assert [path.name for path in read_reference(str(tmp_path / "real")).paths] == ["a.png"]


def test_records_without_figures_and_other_lines_are_left_out(folder):
    wrong = [{"seconds": 0}, {"target_forwards": "many", "seed": 1.5}]
    wrong += [{"mean_verified_depth": float("nan"), "cpu_seconds": "9"}]
    lines = zip(read_lines(folder / "records.jsonl"), [*wrong, {}, {}, {}], strict=True)
    write_records(folder, [line | change for line, change in lines])
    path = folder / "records.jsonl"
    path.write_bytes(b"\xff\n" + path.read_bytes() + b'{"id": "0')
    run = read_run(str(folder), "run")
    assert list(run.records) == ["00003_0", "00004_0", "00005_0"]
    assert sorted(run.images.left_out) == [
        "00000_0: a record with seconds 0",
        "00001_0: a record with seed 1.5, target_forwards 'many'",
        "00002_0: a record with mean_verified_depth nan, cpu_seconds '9'",
        "records.jsonl, line 1: not a record",
        "records.jsonl, line 8: not a record",
    ]


def test_traces_of_the_images_on_show(folder):
    rounds, names = rounds_of([2] * 85), ("00000_0", "00001_0")
    whole, other = ([{"id": name} | entry for entry in rounds] for name in names)
    # the last round twice, as after a kill, and an image of which one round is there
    entries = [*whole, *other, other[-1], other[0] | {"id": "00002_0"}]
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (folder / "trace.jsonl").write_text(f"nothing\n{text}")
    Image.new("RGB", (16, 4)).save(folder / "img" / "00001_0.png")
    lines = read_lines(folder / "records.jsonl")
    write_records(folder, [{k: line[k] for k in line if k != "image_sha256"} for line in lines])
    maps, faults = read_maps(read_run(str(folder), "run"), {"00001_0", "00002_0"})
    assert list(maps) == ["00001_0"] and maps["00001_0"].shape == (8, 32), "rows of the picture"
    accepted = maps["00001_0"].ravel()
    assert np.isnan(accepted[0]) and (accepted[1:] == 2).all()
    assert faults[0] == "trace.jsonl, line 1: not a round"
    assert faults[1].startswith("00002_0: a trace that cannot")


def test_a_map_of_glm_image_is_of_the_grid_that_the_picture_shows(tmp_path):
    folder, picture = tmp_path / "run", np.zeros((64, 96, 3), dtype=np.uint8)
    # 13 x 19 tokens of the small grid, then 2 x 3
    write_run(folder, [picture], ["p"], {"model": "glm_image"}, tokens=253)
    rounds = [{"id": "00000_0"} | entry for entry in rounds_of([2] * 82 + [0, 1, 2])]
    (folder / "trace.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rounds))
    maps, faults = read_maps(read_run(str(folder), "run"), {"00000_0"})
    assert maps["00000_0"].tolist() == [[0, 1, 1], [2, 2, 2]] and not faults


def test_a_position_has_the_acceptance_of_the_round_that_decided_it() -> None:
    accepted = accepted_by_position(rounds_of([2, 0, 1]), 7)
    np.testing.assert_array_equal(accepted, [np.nan, 2, 2, 2, 0, 1, 1])


@pytest.mark.parametrize("damage", [{"position": 5}, {"accepted": 9}, {"top1": [0.1, 0.2]}])
def test_rounds_that_do_not_fit_are_refused(damage) -> None:
    broken = rounds_of([2, 0, 1])
    broken[1] |= damage
    with pytest.raises(ValueError, match="round 1 does not continue at position 4"):
        accepted_by_position(broken, 7)
    with pytest.raises(ValueError, match="up to position 5 of 7"):
        accepted_by_position(rounds_of([2, 0]), 7)


def slices(tmp_path: Path, **other: object) -> list[str]:
    """Write a run of four images as two slices; the second has other settings."""
    prompts = [f"prompt {n}" for n in range(4)]
    one, two = tmp_path / "one", tmp_path / "two"
    write_run(one, GREY[:2], prompts[:2])
    write_run(two, GREY[:4], prompts, dict(other))
    write_records(two, read_lines(two / "records.jsonl")[2:])
    for number in range(2):
        (two / f"img/0000{number}_0.png").unlink()
    return [str(one), str(two)]


def test_slices_of_two_machines_are_one_run(tmp_path):
    one, two = slices(tmp_path)
    whole = write_run(tmp_path / "whole", GREY[:4], [f"prompt {n}" for n in range(4)])
    run, same = read_runs([f"{one}+{two}", str(whole)])
    assert run.name == "one+two" and run.by_image == same.by_image
    assert run.images.keys == same.images.keys and run.images.prompts == same.images.prompts
    assert [path.parent.parent.name for path in run.files.values()] == ["one", "one", "two", "two"]
    # both commands are known, so other hardware is told
    assert len(run.manifest["earlier"]) == 1
    entries = [{"id": "00003_0"} | entry for entry in rounds_of([2] * 85)]
    (Path(two) / "trace.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    assert read_maps(run, ["00003_0"])[0]["00003_0"].shape == (16, 16)


def test_slices_of_other_settings_are_no_run(tmp_path):
    one, two = slices(tmp_path, temperature=0.5)
    with pytest.raises(
        SettingsError, match="two: expected a slice of the same run, got .*temperature"
    ):
        read_runs([f"{one}+{two}"])
    (changed := read_lines(Path(one) / "records.jsonl"))[0]["tokens_sha256"] = "other"
    again = write_run(tmp_path / "again", GREY[:2], ["prompt 0", "prompt 1"])
    write_records(again, changed)
    with pytest.raises(
        SettingsError, match="got other images than in .*one: 00000_0: other tokens"
    ):
        read_runs([f"{one}+{again}"])


def test_a_folder_whose_name_has_a_plus_is_one_run(tmp_path):
    folder = write_run(tmp_path / "a+b", GREY[:1], ["p"])
    assert [run.folders for run in read_runs([str(folder)])] == [(folder,)]


def test_slices_that_are_spelled_in_two_ways_are_one_run(tmp_path, monkeypatch):
    one, two = slices(tmp_path)
    monkeypatch.chdir(tmp_path)
    # a run twice would get longer names for ever
    evaluated = settings_of(tmp_path, Path("one+two"), Path("one/../one+two"))
    absolute = EvaluateSettings(output_dir="one+two", baseline=f"{one}+{two}")
    assert evaluated.folders == absolute.folders == ("one+two",)
    assert [run.name for run in read_runs(["one+two", f"{one}+{two}"])] == ["one+two"]
