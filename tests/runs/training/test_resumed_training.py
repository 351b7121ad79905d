"""A training that was stopped goes on, or one line says why not; nothing is lost."""

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from browser import thinned
from damage import Damage, a_folder, content, cut, fill_disk
from ran import without_progress
from safetensors.torch import load_file, save_file
from trainings import (
    curve,
    evaluation,
    open_training,
    run,
    stopped,
    words,
    write_tokens,
)

import main
from configs.fields import SettingsError
from runs.training.train import Training
from scripts.checkpoints.chameleon import write_checkpoint
from support.json_lines import read_lines
from support.processes import Processes


def test_a_resumed_run_is_the_uninterrupted_one(folders, tmp_path) -> None:
    """Interrupted between two lines of the log, after a line that is made again."""
    whole = run(folders, tmp_path / "whole", save_every=2, log_every=3)
    stopped(folders, tmp_path / "part", 4, save_every=2, log_every=3)
    with (tmp_path / "part" / "log.jsonl").open("a") as log:
        log.write('{"step": 5, "loss": 0}\n')
    assert run(folders, tmp_path / "part", save_every=2, log_every=3) == whole and len(whole) == 2
    resumed, expected = (
        (tmp_path / name / "drafter/model.safetensors").read_bytes() for name in ("part", "whole")
    )
    assert resumed == expected


@pytest.mark.parametrize("sent", thinned([signal.SIGTERM, signal.SIGINT]))
def test_a_signal_writes_a_checkpoint_and_the_same_command_goes_on(
    folders, tmp_path, monkeypatch, capsys, sent
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    whole = run(folders, tmp_path / "whole", steps=4)
    training = open_training(folders, tmp_path / "part", steps=4)
    update = training.trainer.update
    ends = lambda: (update(), os.kill(os.getpid(), sent))[0]  # noqa: E731
    monkeypatch.setattr(training.trainer, "update", ends)
    with pytest.raises(KeyboardInterrupt):
        training.run()
    signal.signal(signal.SIGINT, before)
    capsys.readouterr()
    assert run(folders, tmp_path / "part", steps=4) == whole
    assert "continuing at step 1 of 4\n" in capsys.readouterr().err


def test_the_log_counts_updates_over_their_own_time(folders, tmp_path, monkeypatch) -> None:
    """Four images a second: not those of an earlier command, and no evaluation's time."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("runs.training.train.time.perf_counter", lambda: clock.now)

    def pass_time(seconds: float) -> None:
        clock.now += seconds

    def open_timed() -> Training:
        more = {"steps": 6, "log_every": 4, "save_every": 2, "eval_every": 3}
        training = open_training(folders, tmp_path, **more)
        update, evaluate = training.trainer.update, training._evaluate
        monkeypatch.setattr(training.trainer, "update", lambda: (update(), pass_time(1))[0])
        monkeypatch.setattr(training, "_evaluate", lambda: (evaluate(), pass_time(100)))
        return training

    training = open_timed()
    training.recent = [training.trainer.update() for _ in range(2)]
    training._save()
    open_timed().run()
    lines = [line for line in read_lines(tmp_path / "log.jsonl", "step") if "loss" in line]
    figures = [[line[name] for name in ("images_per_second", "seconds_left")] for line in lines]
    assert figures == [[4, 2], [4, 0]]


def test_a_training_goes_on_with_its_own_images_only(folders, tmp_path) -> None:
    """More images change which are held out, and the order of all others."""
    tokens = write_tokens(tmp_path / "tokens", "tiny", folders / "model", (4, 4), 12)
    more = {"tokens": tokens, "holdout": 2, "batch_size": 2}
    stopped(folders, tmp_path / "out", **more)
    run(folders, tmp_path / "out", **more)
    shutil.rmtree(tokens)
    write_tokens(tokens, "tiny", folders / "model", (4, 4), 24)
    with pytest.raises(SettingsError, match="--tokens: expected the images .* --start_from"):
        open_training(folders, tmp_path / "out", **more).run()


def test_a_training_goes_on_with_the_same_files_at_other_places(folders, tmp_path) -> None:
    """Not with other files at the same places, but a start may have changed since."""
    out, old, new = (tmp_path / name for name in ("out", "old", "new"))

    def resume(root: Path, start: str | Path) -> Training:
        more = {"start_from": start, "tokenizer_path": root / "model" / "tokenizer"}
        training = open_training(root, out, **more)
        training._resume()
        return training

    shutil.copytree(folders, old)
    drafter = old / "model" / "drafter"
    resume(old, drafter)._save()
    weights = drafter / "model.safetensors"
    save_file(load_file(weights), weights, {"format": "another"})
    resume(old, drafter)
    shutil.rmtree(old)
    shutil.copytree(folders, new)
    drafter = new / "model" / "drafter"
    training = resume(new, drafter)
    with pytest.raises(SettingsError, match="--start_from: expected the files that the checkpoint"):
        resume(new, write_checkpoint(tmp_path / "other", seed=5) / "drafter")
    state = torch.load(training.checkpoint)
    changed = state | {"files": state["files"] | {"tokenizer_path": "0"}}
    torch.save(changed, training.checkpoint)
    with pytest.raises(SettingsError, match="--tokenizer_path: expected the files that .* others"):
        resume(new, drafter)
    torch.save(state, training.checkpoint)
    resume(new, os.path.relpath(drafter))


def test_the_command_goes_on_once_its_folders_have_moved(folders, tmp_path, monkeypatch) -> None:
    """With the same words in a folder of another name, too."""
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(folders, old)
    start = {"start_from": "model/drafter", "tokenizer_path": "model/tokenizer"}
    paths = lambda root: {name: root / path for name, path in start.items()}  # noqa: E731
    stopped(old, old / "out", steps=3, **paths(old))
    old.rename(new)
    assert main.main([*words(new, new / "out", steps=3, **paths(new)), "--dry_run"]) == 0
    monkeypatch.chdir(new)
    assert len(run(Path(), Path("out"), steps=3, **paths(Path()))) == 3


def test_other_flags_on_resume_are_refused_by_name_before_anything_is_loaded(
    folders, tmp_path, monkeypatch, capsys
) -> None:
    out = tmp_path / "my run"
    run(folders, out, steps=1)
    monkeypatch.setattr("runs.training.train.open_target", Mock(side_effect=AssertionError))
    others = {"depths": 3, "batch_size": 8, "lr": 0.5, "alignment": "shifted", "cfg": 2.0}
    for flag, value in (others | {"steps": 3}).items():
        assert main.main(words(folders, out, **{"steps": 1, flag: value})) == 2
        said = capsys.readouterr().err
        assert f"--{flag}: expected " in said
        assert f", as the checkpoint in {out} has, got {value!r}." in said
    assert f"To train on, use --start_from '{out}/drafter'" in said


def test_a_training_that_needs_less_memory_goes_on(folders, tmp_path, monkeypatch, capsys) -> None:
    stopped(folders, tmp_path)
    monkeypatch.setattr("drafters.training.trainer.Trainer.update", full := Mock())
    full.side_effect = torch.OutOfMemoryError("CUDA out of memory.")
    assert main.main(words(folders, tmp_path)) == 1
    said = capsys.readouterr().err
    assert "such as a larger --accumulate" in said and "--vq_device" not in said
    monkeypatch.undo()
    run(folders, tmp_path, accumulate=4)
    with pytest.raises(SettingsError, match="--batch_size: .* got 2. For less .*, --accumulate"):
        open_training(folders, tmp_path, batch_size=2).run()


def test_flags_that_a_resume_leaves_out_are_missed(folders, tmp_path) -> None:
    for out, given in (
        ("1", {"train_images": 4, "agreement": "overlap"}),
        ("2", {"drafter": "block"}),
    ):
        stopped(folders, tmp_path / out, **given)
        for flag, value in given.items():
            others = {name: given[name] for name in given if name != flag}
            message = f"--{flag}: expected {value!r}, as the checkpoint"
            with pytest.raises(SettingsError, match=message):
                open_training(folders, tmp_path / out, **others).run()


def test_a_drafter_is_evaluated_once_unless_it_was_interrupted_or_begun_again(
    folders, tmp_path
) -> None:
    run(folders, tmp_path, steps=2)
    path, drafter = tmp_path / "evaluation.json", tmp_path / "drafter" / "model.safetensors"
    first, written = (path.stat().st_mtime_ns, path.read_text()), drafter.read_bytes()
    run(folders, tmp_path, steps=2)
    assert path.stat().st_mtime_ns == first[0], "nothing is left to do"
    path.unlink()
    run(folders, tmp_path, steps=2)
    assert path.read_text() == first[1]
    shutil.rmtree(drafter.parent)
    run(folders, tmp_path, steps=2)
    assert drafter.read_bytes() == written
    run(folders, tmp_path, steps=2, eval_images=1, eval_method="eagle2")
    assert evaluation(tmp_path)["decoding"]["method"] == "eagle2"
    (tmp_path / "checkpoint" / "state.pt").unlink()
    run(folders, tmp_path, steps=2, lr=1e-2)
    assert drafter.read_bytes() != written


def test_a_killed_evaluation_is_made_up_for(folders, tmp_path, monkeypatch) -> None:
    more = {"steps": 5, "save_every": 2, "eval_every": 2}
    for step in (2, 4, 5):
        training = open_training(folders, tmp_path, **more)

        def stop(step: int = step, training: Training = training) -> None:
            if training.trainer.step == step:
                raise KeyboardInterrupt
            Training._evaluate(training)

        monkeypatch.setattr(training, "_evaluate", stop)
        with pytest.raises(KeyboardInterrupt):
            training.run()
    run(folders, tmp_path, **more)
    run(folders, tmp_path, **more)
    lines = read_lines(tmp_path / "log.jsonl", "step")
    assert [line["step"] for line in lines if "levels" in line] == [2, 4, 5]
    assert training.evaluation.done(4), "of an earlier checkpoint, no evaluation is missing"


@pytest.mark.parametrize("killed", ["JsonLog.write", "curves.draw_curves", "Evaluation._keep_best"])
def test_an_evaluation_is_whole_or_made_again(folders, tmp_path, monkeypatch, killed) -> None:
    """Its figures, its line of the log, and the best drafter."""
    run(folders, tmp_path, steps=1)
    for path in ("evaluation.json", "best/evaluation.json"):
        (tmp_path / path).unlink()
    training = open_training(folders, tmp_path, steps=1)
    module = "evaluation" if "Evaluation" in killed else "train"
    with monkeypatch.context() as patch:
        patch.setattr(f"runs.training.{module}.{killed}", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            training.run()
    run(folders, tmp_path, steps=1)
    lines = read_lines(tmp_path / "log.jsonl", "step")
    assert [line["step"] for line in lines if "levels" in line] == [1]
    assert json.loads((tmp_path / "best/evaluation.json").read_text()) == evaluation(tmp_path)


def test_processes_with_other_flags_are_noticed(folders, tmp_path) -> None:
    """The second process of two hears what the first one has said."""
    said: list[object] = []
    alike = Processes(0, 2, gather=lambda value: (said.append(value), [value, value])[1])
    open_training(folders, tmp_path, alike)
    for other in ({"lr": 0.5}, {"save_every": 3}):
        heard = iter(said)
        second = Processes(1, 2, gather=lambda value, heard=heard: [next(heard), value])
        with pytest.raises(SettingsError, match="expected the same flags in all processes"):
            open_training(folders, tmp_path, second, **other)


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory) -> Path:
    """A training of two steps with its cache of features."""
    out = tmp_path_factory.mktemp("trained")
    run(folders, out / "out", steps=2, save_every=1, cache_features=out / "cache")
    return out


@pytest.fixture
def copy(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def train(folders: Path, root: Path, capsys) -> tuple[int, str]:
    """Return the exit code and what was said on stderr, progress apart."""
    given = {"steps": 2, "save_every": 1, "cache_features": root / "cache"}
    code = main.main(words(folders, root / "out", **given))
    lines = without_progress(capsys.readouterr().err).splitlines()
    return code, "\n".join(line for line in lines if line.strip())


def state(**changed: object) -> Damage:
    def damage(root: Path) -> None:
        held = torch.load(root / STATE, weights_only=True) | changed
        held = {key: value for key, value in held.items() if value is not None}
        torch.save(held, root / STATE)

    return damage


STATE, LOG, EVALUATION = "out/checkpoint/state.pt", "out/log.jsonl", "out/evaluation.json"


CACHE = "cache/about.json"


FAULTS = {
    "a checkpoint of junk": (STATE, content(STATE, "junk")),
    "a checkpoint cut": (STATE, cut(STATE, 100)),
    "a checkpoint that is a list": (STATE, lambda root: torch.save([1], root / STATE)),
    "a checkpoint without settings": (STATE, state(settings=None)),
    "a checkpoint without weights": (STATE, state(weights=None)),
    "a checkpoint of other weights": (STATE, state(weights={"fc.weight": torch.ones(1)})),
    "a checkpoint of other optimizers": (STATE, state(optimizers=[])),
    "a log of text": (LOG, content(LOG, "hello\n{}\n\n")),
    "a log without steps": (LOG, content(LOG, '{"loss": 1}\n\n\n')),
    "a log in a folder": (LOG, a_folder(LOG)),
    "figures of junk": (EVALUATION, content(EVALUATION, "{")),
    "figures of another program": (EVALUATION, content(EVALUATION, '{"speed": []}')),
    "figures without settings": (EVALUATION, content(EVALUATION, '{"step": 2}')),
    "figures in a folder": (EVALUATION, a_folder(EVALUATION)),
    "a cache of another program": (CACHE, content(CACHE, "[]")),
    "a cache in a folder": (CACHE, a_folder(CACHE)),
}


@pytest.mark.parametrize("fault", thinned(FAULTS))
def test_damaged_files_are_named_in_one_line(folders, copy, capsys, fault):
    name, damage = FAULTS[fault]
    damage(copy)
    code, said = train(folders, copy, capsys)
    assert code == 2 and len(said.splitlines()) == 1
    assert said.startswith("error: ") and Path(name).name in said


@pytest.mark.parametrize(
    "name", thinned(["state.pt", "log.jsonl", "model.safetensors", "rows-00000"])
)
def test_a_full_disk_costs_at_most_the_steps_since_the_last_checkpoint(
    folders, trained, tmp_path, capsys, monkeypatch, name
):
    """The same command goes on, once there is space, to the same figures."""
    fill_disk(monkeypatch, name, turn=2 if name == "state.pt" else 1)
    code, said = train(folders, tmp_path, capsys)
    assert code == 1 and len(said.splitlines()) == 1
    assert said.startswith("error: ") and name in said and "No space left on device" in said
    monkeypatch.undo()
    assert train(folders, tmp_path, capsys)[0] == 0
    assert curve(tmp_path / "out") == curve(trained / "out")
