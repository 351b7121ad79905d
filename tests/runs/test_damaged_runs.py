"""Run folders with damaged or foreign files: one error names file and line, or the rest is used."""

import json
import shutil
from pathlib import Path

import pytest
from damage import Damage, a_folder, content, cut, entries, gone
from fake_session import FakeEngine, fake_opener, fake_run
from fake_session import content as content_of

from configs.fields import SettingsError
from configs.schema import RunSettings
from runs.generate import generate_images
from support.json_files import read_lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder with a run of three images, and its model."""
    place = tmp_path_factory.mktemp("whole")
    generate_images(settings_of(place), fake_opener(FakeEngine()))
    return place


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole / "out", tmp_path / "out"))


def settings_of(place: Path, out: Path | None = None, **flags) -> RunSettings:
    flags = {"num_images": 3, "trace": True} | flags
    return fake_run(place, output_dir=str(out or place / "out"), **flags)


def generate(whole: Path, run: Path, **flags) -> FakeEngine:
    engine = FakeEngine()
    generate_images(settings_of(whole, run, **flags), fake_opener(engine))
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
    damage, message = DAMAGE[fault]
    damage(run)
    before = files(run)
    with pytest.raises(SettingsError, match=message):
        generate(whole, run, num_images=4)
    changed = {path.name for path, held in before.items() if path.read_bytes() != held}
    assert changed <= {".lock", RUN if "trace" in fault else ".lock"}


@pytest.mark.parametrize("name", [name for name in DAMAGE if name.startswith("run.json")])
def test_overwrite_spares_a_run_json_of_another_program(whole, run, name):
    DAMAGE[name][0](run)
    before = files(run).get(run / RUN)
    with pytest.raises(SettingsError, match=RUN):
        generate(whole, run, overwrite=True)
    assert files(run).get(run / RUN) == before


SECOND = "img/00000_1.png"


def flip_a_bit(run: Path) -> None:
    content = bytearray((run / SECOND).read_bytes())
    content[len(content) // 2] ^= 1
    (run / SECOND).write_bytes(content)


def swap(run: Path) -> None:
    shutil.copy(run / "img/00000_0.png", run / SECOND)


NO_PNG = {"empty": content(SECOND, b""), "text": content(SECOND, b"x" * 99)}
NO_PNG["cut"] = cut(SECOND, 1)
CHANGED = NO_PNG | {"flipped": flip_a_bit, "swapped": swap, "gone": gone(SECOND)}


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


@pytest.mark.parametrize("damage", NO_PNG.values(), ids=NO_PNG)
def test_records_without_a_hash_are_kept_as_older_runs_wrote_them(whole, run, damage):
    for number in (1, 2, 3):
        line("records.jsonl", number, image_sha256=None)(run)
    swap(run)
    assert generate(whole, run).drawn == []
    damage(run)
    assert generate(whole, run).drawn == ["00000_1"]
