"""Several processes at one run: what they write together equals what one writes alone."""

import json
import shutil
import threading
from pathlib import Path

import pytest
from browser import only_in_all
from fake_session import FakeEngine, content, fake_opener, fake_run, nine_names
from made_runs import pictures
from ran import torchrun
from together import Together

import main
from configs.fields import SettingsError
from configs.schema import RunSettings, SamplingSettings
from eval.report.run import read_run
from runs.generate import generate_images, run_folder
from support.json_lines import read_lines
from support.locks import lock
from support.processes import Processes, launched


@pytest.fixture
def settings(tmp_path):
    flags = {"prompt": nine_names(tmp_path), "trace": True}
    return lambda folder, **more: fake_run(
        tmp_path, output_dir=str(tmp_path / folder), **flags | more
    )


def make(
    settings: RunSettings, count: int, broken: dict[int, int] | None = None
) -> list[BaseException | None]:
    """Generate in `count` processes; broken: rank -> rounds after which it dies."""

    def work(processes: Processes) -> None:
        engine = FakeEngine(broken_after=(broken or {}).get(processes.rank))
        generate_images(settings, fake_opener(engine), processes)

    return Together(count).run(work)


def test_many_make_what_one_makes(settings, tmp_path, capsys):
    assert make(settings("one"), 1) == [None]
    assert make(settings("three"), 3) == [None] * 3
    assert content(tmp_path / "three") == content(tmp_path / "one")
    assert not list((tmp_path / "three").glob("*.*.jsonl"))
    assert json.loads((tmp_path / "three/run.json").read_text())["processes"] == 3
    assert capsys.readouterr().out.count("9 images in") == 2  # the first process speaks for all


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 1), (1, 2)])
def test_continued_by_another_number(settings, tmp_path, before, after):
    make(settings("one"), 1)
    faults = make(settings("many"), before, {before - 1: 5 if before > 1 else 9})
    assert any(isinstance(fault, KeyboardInterrupt) for fault in faults)
    if before > 1:
        assert list((tmp_path / "many").glob("records.*.jsonl"))
        assert read_run(str(tmp_path / "many"), "many").images.paths  # evaluate reads parts
    assert make(settings("many"), after) == [None] * after
    assert content(tmp_path / "many") == content(tmp_path / "one")


def test_parts_that_were_joined_but_not_removed_count_once(settings, tmp_path):
    make(settings("one"), 1)
    out = tmp_path / "one"
    for name in ("records", "trace"):
        shutil.copy(out / f"{name}.jsonl", out / f"{name}.1.jsonl")
    before = content(out)
    (out / "img/00003_0.png").unlink()
    make(settings("one"), 2)
    assert content(out) == before and not list(out.glob("*.*.jsonl"))


def test_a_process_that_was_left_over_is_noticed(settings, tmp_path):
    make(settings("one"), 2)
    with lock(tmp_path / "one/.lock.1"), pytest.raises(SettingsError, match="another process"):
        run_folder(settings("one")).__enter__()


@pytest.mark.parametrize("before", [0, 3])
def test_folders_that_are_not_shared_are_noticed_before_the_model_is_loaded(
    settings, tmp_path, before
):
    """Also where they look alike, and where one has images of an earlier run."""
    if before:
        make(settings("b", num_images=before), 1)

    def work(processes: Processes) -> None:
        folder = settings("ab"[processes.rank])
        generate_images(folder, lambda _: pytest.fail("loaded"), processes)

    faults = Together(2).run(work)
    assert_refused(faults, "a folder that all processes share")


def assert_refused(faults: list[BaseException | None], message: str) -> None:
    """The thread that raises first may break the other one's wait."""
    told = [str(fault) for fault in faults if isinstance(fault, SettingsError)]
    assert told and all(message in text for text in told)
    broken = [fault for fault in faults if not isinstance(fault, SettingsError)]
    assert all(isinstance(fault, threading.BrokenBarrierError) for fault in broken)


def test_processes_with_other_prompts_are_noticed(settings, tmp_path):
    lists = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path, text in zip(lists, ("a\nb\n", "a\nc\n"), strict=True):
        path.write_text(text)

    def work(processes: Processes) -> None:
        run = settings("out", prompt=str(lists[processes.rank]))
        generate_images(run, lambda _: pytest.fail("loaded"), processes)

    assert_refused(Together(2).run(work), "the same prompts in all")


def test_processes_with_other_settings_are_noticed(settings):
    """As where someone types the command again on the second machine."""

    def work(processes: Processes) -> None:
        run = settings("out", sampling=SamplingSettings(cfg=2.0 + processes.rank))
        generate_images(run, lambda _: pytest.fail("loaded"), processes)

    assert_refused(Together(2).run(work), "got a run with other settings: --cfg: ")


def test_no_launcher_means_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (launched().rank, launched().count, launched().gather(3)) == (0, 1, [3])
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launched().share([1, 2]) == [1, 2]


FULL = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "here"}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": ""}, "WORLD_SIZE: .*got ''"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: .*got '0'"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK: .*got '-1'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK: .*got 2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR: .*got nothing"),
        (FULL, "MASTER_PORT: .*got nothing"),
        (FULL | {"MASTER_PORT": "x"}, "MASTER_PORT"),
    ],
)
def test_an_environment_that_no_launcher_sets_is_one_line(monkeypatch, variables, message):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=message):
        launched()


# Joins, works, imports what holds the group, and counts its threads at the end.
ENDS = """
import atexit, os
import torch

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
atexit.register(lambda: os.write(1, f"threads left {threads() - before}\\n".encode()))
from support.processes import launched
crew, ranks = launched(torch.device("cpu")), torch.tensor([1.0, 2.0])
assert crew.gather(1) == [1, 1]
crew.average([mean := ranks[crew.rank].clone()])
assert mean == 1.5
import torch.distributed.nn.functional
assert threads() > before
"""


@only_in_all  # three programs that import torch
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists threads by /proc")
def test_a_process_that_ends_leaves_its_group(tmp_path) -> None:
    """A thread of the group that outlives it aborts Python now and then."""
    (tmp_path / "ends.py").write_text(ENDS)
    done = torchrun(program=tmp_path / "ends.py")
    assert done.stdout.splitlines() == ["threads left 0"] * 2


@only_in_all
def test_torchrun_makes_the_images_of_one_process(checkpoint, tmp_path):
    (tmp_path / "p.txt").write_text("a cat\na dog\na bus\n")
    flags = [f"--model_path={checkpoint}", f"--prompt={tmp_path / 'p.txt'}"]
    flags += ["--device=cpu", "--method=ar"]
    done = torchrun("generate_images", *flags, f"--output_dir={tmp_path / 'two'}")
    assert done.stdout.count("3 images in") == 1
    assert main.main(["generate_images", *flags, f"--output_dir={tmp_path / 'one'}"]) == 0
    one, two = (read_lines(tmp_path / name / "records.jsonl") for name in ("one", "two"))
    tokens = [{line["id"]: line["tokens_sha256"] for line in lines} for lines in (one, two)]
    assert tokens[0] == tokens[1]
    assert pictures(tmp_path / "one") == pictures(tmp_path / "two")
