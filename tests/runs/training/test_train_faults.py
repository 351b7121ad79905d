"""`train_drafter` on damaged files and full disks: one line names the file, and nothing is lost."""

import shutil
from pathlib import Path

import pytest
import torch
from damage import Damage, a_folder, content, cut, fill_disk
from said import without_progress
from test_train import curve, folders, run, words

import main

__all__ = ["folders"]  # the fixture


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory) -> Path:
    """A training of two steps with its cache of features."""
    out = tmp_path_factory.mktemp("trained")
    run(folders, out / "out", steps=2, save_every=1, cache_features=out / "cache")
    return out


@pytest.fixture
def copy(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def train(folders: Path, root: Path, capsys, **more: object) -> tuple[int, str]:
    """Return the exit code and what was said on stderr, progress apart."""
    given = {"steps": 2, "save_every": 1, "cache_features": root / "cache"} | more
    code = main.main(words(folders, root / "out", **given))
    lines = without_progress(capsys.readouterr().err).splitlines()
    return code, "\n".join(line for line in lines if line.strip())


def state(name: str, **changed: object) -> Damage:
    def damage(root: Path) -> None:
        held = torch.load(root / name, weights_only=True) | changed
        held = {key: value for key, value in held.items() if value is not None}
        torch.save(held, root / name)

    return damage


STATE, LOG, EVALUATION = "out/checkpoint/state.pt", "out/log.jsonl", "out/evaluation.json"
CACHE = "cache/about.json"
FAULTS = {
    "a checkpoint of junk": (STATE, content(STATE, "junk")),
    "a checkpoint cut": (STATE, cut(STATE, 100)),
    "a checkpoint that is a list": (STATE, lambda root: torch.save([1], root / STATE)),
    "a checkpoint without settings": (STATE, state(STATE, settings=None)),
    "a checkpoint without weights": (STATE, state(STATE, weights=None)),
    "a checkpoint of other weights": (STATE, state(STATE, weights={"fc.weight": torch.ones(1)})),
    "a checkpoint of other optimizers": (STATE, state(STATE, optimizers=[])),
    "a log of text": (LOG, content(LOG, "hello\n{}\n\n")),
    "a log without steps": (LOG, content(LOG, '{"loss": 1}\n\n\n')),
    "a log in a folder": (LOG, a_folder(LOG)),
    "figures of junk": (EVALUATION, content(EVALUATION, "{")),
    "figures of another program": (EVALUATION, content(EVALUATION, '{"speed": []}')),
    "figures in a folder": (EVALUATION, a_folder(EVALUATION)),
    "a cache of another program": (CACHE, content(CACHE, "[]")),
    "a cache in a folder": (CACHE, a_folder(CACHE)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_files_are_named_in_one_line(folders, copy, capsys, fault):
    name, damage = FAULTS[fault]
    damage(copy)
    code, said = train(folders, copy, capsys)
    assert code == 2 and len(said.splitlines()) == 1
    assert said.startswith("error: ") and Path(name).name in said


def test_more_steps_than_the_checkpoint_has_point_to_start_from(folders, copy, capsys):
    code, said = train(folders, copy, capsys, steps=3)
    assert code == 2 and "--steps: expected 2, as the checkpoint in" in said
    assert f"got 3. To train on, use --start_from {copy / 'out/drafter'}" in said


@pytest.mark.parametrize("name", ["state.pt", "log.jsonl", "model.safetensors", "rows-00000"])
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
