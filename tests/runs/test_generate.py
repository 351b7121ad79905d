"""`generate_images` around a fake engine: what it writes, how it continues, what a kill leaves."""

import hashlib
import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fake_session import (
    FakeEngine,
    content,
    fake_codes,
    fake_opener,
    fake_pixels,
    fake_run,
    nine_names,
)
from PIL import Image

from configs.fields import SettingsError
from configs.schema import MethodSettings, RunSettings, SamplingSettings
from decoding.seeds import image_seed
from runs.generate import generate_images
from support.json_lines import read_lines
from support.processes import ALONE, Processes

FIELDS = "id prompt seed method proposal verifier lossless tokens target_forwards tau "
FIELDS += "mean_drafted_depth mean_verified_depth "
FIELDS += "mean_nodes seconds seconds_prefill seconds_draft seconds_verify seconds_decode "
FIELDS += "cpu_seconds tokens_sha256 image_sha256"


@pytest.fixture
def settings(tmp_path):
    return partial(fake_run, tmp_path)


@pytest.fixture
def names(tmp_path) -> str:
    return nine_names(tmp_path)


def make(settings: RunSettings, processes: Processes = ALONE, **engine) -> FakeEngine:
    fake = FakeEngine(**engine)
    generate_images(settings, fake_opener(fake), processes)
    return fake


def test_files_of_a_run(settings, tmp_path, capsys):
    make(settings(num_images=3, method=MethodSettings("eagle2", "topk"), trace=True))
    out = tmp_path / "out"
    records, _, images = content(out)
    assert sorted(images) == ["00000_0.png", "00000_1.png", "00000_2.png"]
    line = records["00000_1"]
    assert " ".join(line) == FIELDS
    seed = image_seed(0, "a cat", 0, 1)
    codes = fake_codes(seed)
    wanted = {"seed": seed, "tokens": 16, "tau": 4.0, "seconds_verify": 0.2}
    wanted |= {"method": "eagle2", "proposal": "topk", "verifier": "exact", "lossless": True}
    assert {name: line[name] for name in wanted} == wanted
    packed = b"".join(int(code).to_bytes(4, "little", signed=True) for code in codes)
    assert line["tokens_sha256"] == hashlib.sha256(packed).hexdigest()
    assert (np.asarray(Image.open(out / "img/00000_1.png")) == fake_pixels(codes)[0]).all()
    trace = read_lines(out / "trace.jsonl")
    assert (
        " ".join(trace[0])
        == "id round position drafted_depth verified_depth width nodes accepted top1"
    )
    assert [t["position"] for t in trace if t["id"] == "00000_2"] == [0, 4, 8, 12]
    assert json.loads((out / "run.json").read_text())["hardware"] == {"device": "fake"}
    summary = capsys.readouterr().out.splitlines()[-1]
    assert summary.startswith(f"3 images in {out}/img (3 new): tau 3.75, ")
    assert summary.endswith(" tokens/s")


def test_rounds_in_which_the_process_was_stopped_are_told(settings, tmp_path, monkeypatch):
    step = FakeEngine._step

    def stopped(engine: FakeEngine, active: dict) -> object:
        if engine.rounds == 2:
            os.kill(os.getpid(), signal.SIGCONT)  # as the system sends after Ctrl-Z
        return step(engine, active)

    monkeypatch.setattr(FakeEngine, "_step", stopped)
    make(settings(num_images=3))  # two at a time
    records, _, _ = content(tmp_path / "out")
    assert [record.get("stopped_seconds", 0) > 0 for record in records.values()] == [1, 1, 0]


def test_the_same_command_does_nothing_twice(settings, tmp_path, capsys):
    make(settings(num_images=2))
    before = content(tmp_path / "out")
    generate_images(settings(num_images=2), lambda settings: pytest.fail("nothing is missing"))
    assert content(tmp_path / "out") == before
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"2 images in {tmp_path / 'out'}/img (0 new): tau 3.75"
    records = tmp_path / "out" / "records.jsonl"
    records.write_text(records.read_text().replace('"target_forwards"', '"other"', 1))
    generate_images(settings(num_images=2), lambda settings: pytest.fail("nothing is missing"))
    assert make(settings(num_images=5)).drawn == ["00000_2", "00000_3", "00000_4"]


def test_tokens_per_second_are_by_the_slowest_of_several_processes(settings, capsys):
    slower = 100.0
    two = Processes(
        0, 2, gather=lambda value: [value, value + slower if isinstance(value, float) else value]
    )
    make(settings(num_images=1), two)
    assert capsys.readouterr().out.endswith(" (1 new): tau 3.75, 0.2 tokens/s\n")


def test_how_evaluate_names_a_folder_with_a_comma_is_said(settings, tmp_path, capsys):
    for name, told in (("out", 0), ("a,b", 1)):
        make(settings(num_images=1, output_dir=str(tmp_path / name)))
        assert capsys.readouterr().err.count("`evaluate --output_dir '\"/") == told


def test_a_run_in_parts_equals_a_run_at_once(settings, names, tmp_path):
    whole, parts = tmp_path / "out", tmp_path / "parts"
    make(settings(prompt=names))
    for flags in ({"slice": "5-9"}, {"num_images": 2}, {"sample": 4}, {}):
        make(settings(prompt=names, output_dir=str(parts), **flags))
    assert content(parts) == content(whole)


@pytest.mark.parametrize("rounds", [1, 4, 5, 7])
def test_interrupted_and_continued(settings, names, tmp_path, rounds):
    make(settings(prompt=names, output_dir=str(tmp_path / "whole"), trace=True))
    with pytest.raises(KeyboardInterrupt):
        make(settings(prompt=names, trace=True), broken_after=rounds)
    make(settings(prompt=names, trace=True))
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_prompts_that_are_too_long_are_refused_before_the_first_image(settings, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("short\n" + "\n".join(letter * 101 for letter in "abcdefghijkl"))
    listed = "; ".join(f"image {n:05}_0: 101 letters are too many" for n in range(1, 11))
    message = f"--prompt: expected .*got 12 .*take: {listed}; and 2 more. --slice"
    with pytest.raises(SettingsError, match=message):
        make(settings(prompt=str(path)))
    assert not (tmp_path / "out/img").exists()
    assert make(settings(prompt=str(path), slice="0-1")).drawn == ["00000_0"]


def test_finished_images_of_other_prompts_are_refused_before_the_backend(settings, names):
    make(settings(prompt=names))
    Path(names).write_text("another\n")
    message = "image 00000_0 of prompt 'name 0', which is now 'another'"
    with pytest.raises(SettingsError, match=message):
        generate_images(settings(prompt=names), lambda settings: pytest.fail("called"))


def test_a_list_of_prompts_is_its_content(settings, names, tmp_path):
    """It may be moved and grow, but another list makes another run."""
    make(settings(prompt=names, num_images=2))
    moved, other = tmp_path / "moved.txt", tmp_path / "other.jsonl"
    moved.write_text("name 0\nname 1\nname 2\nnew\n")
    assert make(settings(prompt=str(moved))).drawn == ["00002_0", "00003_0"]
    other.write_text('{"id": "fox-1", "prompt": "a fox"}')
    with pytest.raises(SettingsError, match="got images of another list, such as 00000_0 of 'name"):
        make(settings(prompt=str(other)))
    moved.write_text("name 0\nname 9\nname 2\n")
    with pytest.raises(SettingsError, match="image 00001_0 of prompt 'name 1', which is now"):
        make(settings(prompt=str(moved), slice="2-3"))  # which is not of what was chosen


@pytest.mark.parametrize(
    ("flags", "made"), [({"num_images": 4}, 1), ({"prompt": "names", "samples_per_prompt": 2}, 9)]
)
def test_at_temperature_0_a_prompt_has_one_image(settings, names, capsys, flags, made):
    flags = flags | ({"prompt": names} if "prompt" in flags else {})
    assert len(make(settings(sampling=SamplingSettings(temperature=0), **flags)).drawn) == made
    assert f"--temperature 0: {made} instead of" in capsys.readouterr().err


def test_at_temperature_0_a_relaxed_rule_may_have_several_images(settings):
    """VVS decides some rounds by chance."""
    vvs = MethodSettings("jacobi", "topk", verifier="vvs")
    chosen = settings(num_images=4, sampling=SamplingSettings(temperature=0), method=vvs)
    assert len(make(chosen).drawn) == 4


def test_finished_images_whose_seeds_would_be_others_are_refused(settings, tmp_path):
    path = tmp_path / "prompts.jsonl"

    def make_all(names: str) -> FakeEngine:
        path.write_text("\n".join(json.dumps({"id": name, "prompt": "a cat"}) for name in names))
        return make(settings(prompt=str(path)))

    make_all("xy")
    kept = content(tmp_path / "out")
    # z would be the image of x again; of y alone nothing is missing
    for names, other in (("zxy", "x_0"), ("yw", "y_0"), ("y", "y_0")):
        with pytest.raises(SettingsError, match=f"got image {other} of another seed, since an eq"):
            make_all(names)
        assert content(tmp_path / "out") == kept
    assert make_all("xyw").drawn == ["w_0"]


def test_kill_at_any_moment(settings, names, tmp_path):
    context = multiprocessing.get_context("fork")  # a new interpreter would first import torch
    chosen = settings(prompt=names, samples_per_prompt=4, trace=True)
    lines = tmp_path / "out/records.jsonl"
    finished, kills = 0, 0
    for attempt in range(30):
        process = context.Process(target=make, args=(chosen,), kwargs={"pace": 0.005})
        process.start()
        deadline = time.monotonic() + 60
        while process.is_alive() and time.monotonic() < deadline:
            if len(read_lines(lines)) >= finished + 11:
                time.sleep(0.007 * attempt)
                process.kill()
                kills += 1
                break
            time.sleep(0.002)
        process.join(30)
        after = len(read_lines(lines))
        assert after >= finished  # nothing finished is lost
        finished = after
        if process.exitcode == 0:
            break
    assert kills >= 2 and finished == 36
    make(replace(chosen, output_dir=str(tmp_path / "whole")))
    assert content(tmp_path / "out") == content(tmp_path / "whole")
