"""Run folders with damaged or foreign files: one error names file and line, or the rest is used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_session import FakeEngine, fake_opener, fake_run

from configs.fields import SettingsError
from configs.schema import RunSettings
from runs.generate import generate_images
from support.json_files import read_lines

DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder with a run of three images, and its model."""
    place = tmp_path_factory.mktemp("whole")
    generate_images(settings_of(place), fake_opener(FakeEngine()))
    return place


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(whole / "out", tmp_path / "out"))


def settings_of(place: Path, out: Path | None = None, **flags) -> RunSettings:
    flags = {"num_images": 3, "trace": True} | flags
    return fake_run(place, output_dir=str(out or place / "out"), **flags)


def generate(whole: Path, run: Path, **flags) -> FakeEngine:
    engine = FakeEngine()
    generate_images(settings_of(whole, run, **flags), fake_opener(engine))
    return engine


def line(name: str, number: int, **values: object) -> Callable[[Path], None]:
    """Return what changes a line of a file; None takes a value out."""

    def damage(run: Path) -> None:
        lines = read_lines(run / name)
        changed = lines[number - 1] | values
        lines[number - 1] = {key: value for key, value in changed.items() if value is not None}
        text = "".join(json.dumps(each) + "\n" for each in lines)
        (run / name).write_text(text)

    return damage


def text(name: str, content: str, after: bool = False) -> Callable[[Path], None]:
    """Return what gives a file another content, or adds lines in front of its own."""

    def damage(run: Path) -> None:
        path = run / name
        path.write_text(content + "\n" + path.read_text() if after else content)

    return damage


def folder(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return damage


def earlier(run: Path) -> None:
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(content | {"earlier": 7}))


RECORDS, TRACE, RUN = "records.jsonl", "trace.jsonl", "run.json"
DAMAGE = {
    "no prompt": (line(RECORDS, 2, prompt=None), "line 2: .*got a record with prompt None"),
    "no tau": (line(RECORDS, 2, tau=None), "line 2: .*got a record .*tau None"),
    "text for tau": (line(RECORDS, 2, tau="x"), "line 2: .*got a record .*tau 'x'"),
    "NaN": (line(RECORDS, 1, tau=float("nan")), "records.jsonl, line 1: .*got "),
    "a huge tau": (line(RECORDS, 1, tau=10**400), "line 1: .*got a record"),
    "text between records": (text(RECORDS, "hello", True), "records.jsonl, line 1: .*got 'hello'"),
    "records in a folder": (folder(RECORDS), "records.jsonl: cannot be read: Is a directory"),
    "trace: no number": (line(TRACE, 3, round=None), "trace.jsonl, line 3: .*got a round None"),
    "trace of text": (text(TRACE, "hello", True), "trace.jsonl, line 1: .*got 'hello'"),
    "trace in a folder": (folder(TRACE), "trace.jsonl: cannot be read: Is a directory"),
    "run.json cut": (text(RUN, "{"), "run.json: .*got no JSON"),
    "run.json of brackets": (text(RUN, DEEP), "run.json: .*got no JSON: brackets nested too deep"),
    "run.json a list": (text(RUN, "[]"), r"run.json: expected a JSON object, got \[\]"),
    "run.json of others": (text(RUN, '{"name": "mine"}'), "run.json: .*got no settings"),
    "run.json with earlier 7": (earlier, "run.json: earlier: .*got 7"),
    "run.json a folder": (folder(RUN), "run.json: cannot be read: Is a directory"),
    "run.json in no encoding": (
        lambda run: (run / RUN).write_bytes(b"\xff\xfe{}"),
        "run.json: .*got no JSON",
    ),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_damaged_folder_is_refused_by_name_and_stays_as_it_is(whole, run, fault):
    damage, message = DAMAGE[fault]
    damage(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SettingsError, match=message):
        generate(whole, run, num_images=4)
    changed = {path for path, content in before.items() if path.read_bytes() != content}
    assert changed <= {run / ".lock", run / "run.json" if "trace" in fault else run / ".lock"}


@pytest.mark.parametrize("name", [name for name in DAMAGE if name.startswith("run.json")])
def test_overwrite_spares_a_run_json_of_another_program(whole, run, name):
    DAMAGE[name][0](run)
    before = (run / "run.json").is_file() and (run / "run.json").read_bytes()
    with pytest.raises(SettingsError, match="run.json"):
        generate(whole, run, overwrite=True)
    assert ((run / "run.json").is_file() and (run / "run.json").read_bytes()) == before


def flip_a_bit(run: Path) -> None:
    path = run / "img/00000_1.png"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def swap(run: Path) -> None:
    shutil.copy(run / "img/00000_0.png", run / "img/00000_1.png")


def empty(run: Path) -> None:
    (run / "img/00000_1.png").write_bytes(b"")


@pytest.mark.parametrize("damage", [flip_a_bit, swap, empty])
def test_a_picture_that_changed_is_made_again(whole, run, capsys, damage):
    saved = (run / "img/00000_1.png").read_bytes()
    assert generate(whole, run).drawn == []
    damage(run)
    assert generate(whole, run).drawn == ["00000_1"]
    assert "1 in" in (said := capsys.readouterr().err) and "00000_1.png, are made again" in said
    assert (run / "img/00000_1.png").read_bytes() == saved
    assert generate(whole, run).drawn == []


def test_records_without_a_hash_are_kept_as_older_runs_wrote_them(whole, run):
    for number in (1, 2, 3):
        line("records.jsonl", number, image_sha256=None)(run)
    swap(run)
    assert generate(whole, run).drawn == []
    empty(run)
    assert generate(whole, run).drawn == ["00000_1"]
