"""A run folder keeps what is finished and refuses what does not belong together; of a damaged file
one error names the line, or the rest is used.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from damage import Damage, a_folder, content, cut, entries, fill_disk, gone
from fake_session import FakeEngine, fake_opener, fake_run
from fake_session import content as content_of
from PIL import Image

from configs.fields import SettingsError
from configs.schema import MethodSettings, RunSettings, SamplingSettings
from runs.generate import generate_images, run_folder
from support.durable import append_lines
from support.json_lines import read_lines

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


@pytest.fixture
def settings(tmp_path):
    return partial(fake_run, tmp_path)


def record(name: str, prompt: str = "a cat") -> dict:
    return {"id": name, "prompt": prompt, "tau": 1.5}


def fill(settings: RunSettings, *names: str, trace: bool = False) -> None:
    with run_folder(settings) as folder:
        folder.begin({"device": "test"})
        for name in names:
            rounds = [{"id": name, "round": n} for n in range(2)] if trace else ()
            folder.save(PIXELS, record(name), rounds)


def open_folder(settings: RunSettings) -> dict[str, dict]:
    with run_folder(settings) as folder:
        return folder.records


def test_what_is_saved_is_there_again(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["main.py", "x"])
    fill(settings(batch_size=4))  # which makes no image
    fill(settings(), "00000_0", "00000_1", trace=True)
    found = open_folder(settings())
    content = (tmp_path / "out/img/00000_1.png").read_bytes()
    assert found["00000_1"].pop("image_sha256") == hashlib.sha256(content).hexdigest()
    assert found["00000_1"] == record("00000_1") and list(found) == ["00000_0", "00000_1"]
    assert (np.asarray(Image.open(tmp_path / "out/img/00000_1.png")) == PIXELS).all()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".lock", "img", "records.jsonl", "run.json", "trace.jsonl",
    ]  # fmt: skip
    manifest = json.loads((tmp_path / "out/run.json").read_text())
    assert manifest["settings"]["cfg"] == 3.0 and manifest["arguments"] == ["main.py", "x"]
    assert manifest["hardware"] == {"device": "test"} and manifest["earlier"] == []
    assert {"python", "torch", "transformers", "diffusers", "numpy"} == manifest["versions"].keys()
    fill(settings(batch_size=2, device="cpu"))  # another --device may round as another machine does
    manifest = json.loads((tmp_path / "out/run.json").read_text())
    assert manifest["settings"]["batch_size"] == 2
    before = {"batch_size": 1, "compile": "auto", "cfg_mode": "parallel", "device_map": "single"}
    assert [command | before for command in manifest["earlier"]] == manifest["earlier"] != []
    assert manifest["earlier"][0]["processes"] == 1


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_cut_line_is_no_record(settings, tmp_path, cut):
    fill(settings(), "00000_0", "00000_1")
    path = tmp_path / "out/records.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    finished = ["00000_0", "00000_1"] if cut == 1 else ["00000_0"]  # only the line's end is missing
    assert list(open_folder(settings())) == finished
    fill(settings(), "00000_1")
    assert list(open_folder(settings())) == ["00000_0", "00000_1"]
    assert path.read_bytes().endswith(b"\n") and len({line["id"] for line in read_lines(path)}) == 2


def test_what_a_kill_leaves_is_mended(settings, tmp_path):
    fill(settings(), "00000_0", trace=True)
    for name in (".00000_1.png.12.tmp", ".00000_1.png.mine.tmp", ".mine.png.12.tmp"):
        (tmp_path / "out/img" / name).write_bytes(b"half")
    (tmp_path / "out/.trace.jsonl.12.tmp").write_bytes(b"half")  # of gigabytes
    (tmp_path / "out/img/00000_2.png").write_bytes((tmp_path / "out/img/00000_0.png").read_bytes())
    with (tmp_path / "out/trace.jsonl").open("ab") as file:
        file.write(b'{"id": "00000_2", "round": 0}\n{"id": "000')
    fill(settings())
    assert list(open_folder(settings())) == ["00000_0"]
    assert [line["id"] for line in read_lines(tmp_path / "out/trace.jsonl")] == ["00000_0"] * 2
    hidden = {path.name for path in (tmp_path / "out").rglob(".*.*")}
    assert hidden == {".00000_1.png.mine.tmp", ".mine.png.12.tmp"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_copies_that_users_keep_stay(settings, tmp_path, overwrite):
    """Only files of exactly our names are read, joined and removed."""
    fill(settings(), "00000_0", trace=True)
    copies = ("records.backup.jsonl", "records.1.old.jsonl", "trace.old.jsonl", ".lock.mine")
    copies += ("records.20261128.jsonl", "records.2026.jsonl", "trace.01.jsonl", ".lock.20261128")
    for name in copies:
        (tmp_path / "out" / name).write_text('{"id": "00009_0"}\ndamaged\n')
    mine = ("img/00000_0 (copy).png", "img/00000_0.backup.png", "img/1_0.png")
    mine += ("img/20261128_153000.png", "img/000001_0.png")
    for name in mine:
        shutil.copy(tmp_path / "out/img/00000_0.png", tmp_path / "out" / name)
    fill(settings(overwrite=overwrite))
    assert all((tmp_path / "out" / name).exists() for name in (*copies, *mine))
    assert list(open_folder(settings())) == ([] if overwrite else ["00000_0"])


def test_a_trace_is_read_line_by_line_and_written_only_if_an_image_is_dropped(settings, tmp_path):
    """A trace of a night has gigabytes."""
    path, names = tmp_path / "out/trace.jsonl", [f"0000{n}_0" for n in range(8)]
    fill(settings(), *names)
    rounds = [{"round": n, "top1": "0" * 5000} for n in range(100)]
    append_lines(path, [{"id": name} | each for name in names for each in rounds])  # 4 MB
    (tmp_path / "out/img/00002_0.png").unlink()
    written = [path.stat().st_ino]
    for _ in range(2):
        tracemalloc.start()
        fill(settings())
        assert tracemalloc.get_traced_memory()[1] < 1e6
        tracemalloc.stop()
        written.append(path.stat().st_ino)
    assert written[0] != written[1] == written[2]
    kept = [(line["id"], line["round"]) for line in read_lines(path)]
    assert kept == [(name, n) for name in names if name != "00002_0" for n in range(100)]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"prompt": "a dog"}, "--prompt: 'a cat' there, 'a dog' now"),
        ({"sampling": SamplingSettings(cfg=2)}, "--cfg: 3.0 there, 2.0 now"),
        ({"method": MethodSettings("ar")}, "--method: adt there, ar now"),
        ({"dtype": "fp64"}, "--dtype: fp32 there, fp64 now"),
        ({"dtype": "bf16", "seed": 1}, "--dtype: fp32 there, bf16 now; --seed: 0 there, 1 now"),
    ],
)
def test_other_settings_are_refused_by_name(settings, tmp_path, flags, name):
    fill(settings(), "00000_0")
    before = (tmp_path / "out/run.json").read_bytes()
    message = f"--output_dir .*: .*--overwrite.*got a run with other settings: {name}$"
    with pytest.raises(SettingsError, match=message):
        open_folder(settings(**flags))
    assert (tmp_path / "out/run.json").read_bytes() == before


def test_other_weights_are_other_settings(settings, tmp_path):
    chosen = settings()
    fill(chosen, "00000_0")
    (tmp_path / "model/model.safetensors").write_bytes(b"[]")  # as many bytes as before
    with pytest.raises(SettingsError, match="--model_path"):
        open_folder(chosen)


def test_overwrite_starts_anew_and_removes_only_what_is_ours(settings, tmp_path):
    """Ours are images of records, also if those are named by their prompts or damage is between."""
    fill(settings(), "00000_0", "fox-1_0", trace=True)
    with (tmp_path / "out/records.jsonl").open("a") as file:
        file.write("damaged\n" * 2)
    for name in ("notes.md", "img/mine.png", "img/fox-2_0.png"):
        (tmp_path / "out" / name).write_text("mine")
    other = settings(seed=1, overwrite=True)
    with run_folder(other) as folder:
        assert folder.records == {}
        # nothing is removed before the model is loaded
        assert (tmp_path / "out/img/00000_0.png").exists()
        folder.begin({})
        folder.save(PIXELS, record("00000_0"))
    assert sorted(os.listdir(tmp_path / "out/img")) == ["00000_0.png", "fox-2_0.png", "mine.png"]
    assert (tmp_path / "out/notes.md").exists() and not (tmp_path / "out/trace.jsonl").exists()
    assert list(open_folder(settings(seed=1))) == ["00000_0"]


@pytest.mark.parametrize(
    ("overwrite", "advice"), [(False, "kept, got No space"), (True, "kept, continue without")]
)
def test_a_full_disk_keeps_finished_images(settings, monkeypatch, overwrite, advice):
    """With --overwrite the same command would delete them."""
    fill_disk(monkeypatch, "00000_1.png")
    with pytest.raises(SettingsError, match=f"finished images are {advice}"):
        fill(settings(overwrite=overwrite), "00000_0", "00000_1")
    assert list(open_folder(settings())) == ["00000_0"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_folders_of_others_are_left_alone(settings, tmp_path, overwrite):
    (tmp_path / "out/img").mkdir(parents=True)
    with pytest.raises(SettingsError, match="got img but no run.json"):
        open_folder(settings(overwrite=overwrite))
    assert os.listdir(tmp_path / "out") == ["img"]


def test_numbers_that_are_none_are_not_written(settings):
    with run_folder(settings()) as folder:
        folder.begin({})
        with pytest.raises(ValueError, match="JSON compliant"):
            folder.save(PIXELS, record("00000_0") | {"tau": float("nan")})
    assert open_folder(settings()) == {}


def _hold(settings: RunSettings, held, leave) -> None:
    with run_folder(settings):
        held.set()
        leave.wait(30)


def test_one_process_per_folder_and_a_kill_frees_it(settings):
    context = multiprocessing.get_context("fork")
    held, leave = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(settings(), held, leave))
    process.start()
    assert held.wait(30)
    for overwrite in (False, True):
        with pytest.raises(SettingsError, match="--output_dir .*another process"):
            open_folder(settings(overwrite=overwrite))
    process.kill()
    process.join()
    assert open_folder(settings()) == {}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder with a run of three images, and its model."""
    place = tmp_path_factory.mktemp("whole")
    generate(place, place / "out")
    return place


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole / "out", tmp_path / "out"))


def generate(whole: Path, run: Path, **flags) -> FakeEngine:
    engine, flags = FakeEngine(), {"num_images": 3, "trace": True} | flags
    generate_images(fake_run(whole, output_dir=str(run), **flags), fake_opener(engine))
    return engine


def line(name: str, number: int, **values: object) -> Damage:
    """Change a line of a file; None takes a value out."""

    def damage(run: Path) -> None:
        lines = read_lines(run / name)
        changed = lines[number - 1] | values
        lines[number - 1] = {key: value for key, value in changed.items() if value is not None}
        text = "".join(json.dumps(each) + "\n" for each in lines)
        (run / name).write_text(text)

    return damage


def greeted(name: str) -> Damage:
    return lambda run: (run / name).write_text("hello\n" + (run / name).read_text())


RECORDS, TRACE, RUN = "records.jsonl", "trace.jsonl", "run.json"
DAMAGE = {
    "no prompt": (line(RECORDS, 2, prompt=None), "line 2: .*got a record with prompt None"),
    "no tau": (line(RECORDS, 2, tau=None), "line 2: .*got a record .*tau None"),
    "text for tau": (line(RECORDS, 2, tau="x"), "line 2: .*got a record .*tau 'x'"),
    "NaN": (line(RECORDS, 1, tau=float("nan")), "records.jsonl, line 1: .*got "),
    "a huge tau": (line(RECORDS, 1, tau=10**400), "line 1: .*got a record"),
    "text between records": (greeted(RECORDS), "records.jsonl, line 1: .*got 'hello'"),
    "records in a folder": (a_folder(RECORDS), "records.jsonl: cannot be read: Is a directory"),
    "trace: no number": (line(TRACE, 3, round=None), "trace.jsonl, line 3: .*got a round None"),
    "trace of text": (greeted(TRACE), "trace.jsonl, line 1: .*got 'hello'"),
    "trace in a folder": (a_folder(TRACE), "trace.jsonl: cannot be read: Is a directory"),
    "run.json cut": (content(RUN, "{"), "run.json: .*got no JSON"),
    "run.json nested": (content(RUN, "[" * 100_000), "run.json: .*JSON: brackets nested too deep"),
    "run.json a list": (content(RUN, "[]"), r"run.json: expected a JSON object, got \[\]"),
    "run.json of others": (content(RUN, '{"name": "mine"}'), "run.json: .*got no settings"),
    "run.json with earlier 7": (entries(file=RUN, earlier=7), "run.json: earlier: .*got 7"),
    "run.json a folder": (a_folder(RUN), "run.json: cannot be read: Is a directory"),
    "run.json in no encoding": (content(RUN, b"\xff\xfe{}"), "run.json: .*got no JSON"),
}


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_damaged_folder_is_refused_by_name_and_stays_as_it_is(whole, run, fault):
    """Also with --overwrite, if its run.json may be another program's."""
    damage, message = DAMAGE[fault]
    damage(run)
    before = files(run)
    for overwrite in (False, True) if fault.startswith(RUN) else (False,):
        with pytest.raises(SettingsError, match=message):
            generate(whole, run, num_images=4, overwrite=overwrite)
        changed = {path.name for path, held in before.items() if path.read_bytes() != held}
        assert changed <= {".lock", RUN if "trace" in fault else ".lock"}


SECOND = "img/00000_1.png"


def flip_a_bit(run: Path) -> None:
    content = bytearray((run / SECOND).read_bytes())
    content[len(content) // 2] ^= 1
    (run / SECOND).write_bytes(content)


def swap(run: Path) -> None:
    shutil.copy(run / "img/00000_0.png", run / SECOND)


CHANGED = {"empty": content(SECOND, b""), "text": content(SECOND, b"x" * 99)}
CHANGED |= {"cut": cut(SECOND, 1), "flipped": flip_a_bit, "swapped": swap, "gone": gone(SECOND)}


@pytest.mark.parametrize("damage", CHANGED.values(), ids=CHANGED)
def test_a_picture_that_changed_is_made_again(whole, run, capsys, damage):
    saved = content_of(run)
    assert generate(whole, run).drawn == []
    damage(run)
    present = (run / SECOND).exists()
    assert generate(whole, run).drawn == ["00000_1"]
    assert ("1 in" in (said := capsys.readouterr().err)) is present
    assert ("00000_1.png, are made again" in said) is present
    assert content_of(run) == saved
    assert generate(whole, run).drawn == []
