"""Ways to damage a checkpoint folder, and what `inspect` and `generate_images` say about it."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from itertools import count
from pathlib import Path

import pytest
import torch
import yaml
from ran import without_progress
from safetensors.torch import load_file, save_file
from torch import Tensor

import main
from runs.check import files

Damage = Callable[[Path], object]
State = dict[str, Tensor]


def entries(part: str = "", file: str = "config.json", **values: object) -> Damage:
    """Change entries of a JSON file; None removes one. part: dots lead into it."""

    def damage(folder: Path) -> None:
        document = json.loads((folder / file).read_text())
        section = document
        for name in filter(None, part.split(".")):
            section = section[name]
        section.update(values)
        for name in [name for name, value in values.items() if value is None]:
            del section[name]
        (folder / file).write_text(json.dumps(document))

    return damage


def vqgan(name: str, value: object) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "tokenizer" / "vqgan.yaml"
        document = yaml.safe_load(path.read_text())
        params = document["model"]["params"]
        (params if name in params else params["ddconfig"])[name] = value
        path.write_text(yaml.safe_dump(document))

    return damage


def content(name: str, text: str | bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(
        text if isinstance(text, bytes) else text.encode()
    )


def text(name: str, old: str, new: str) -> Damage:
    """Change words of a file."""

    def damage(folder: Path) -> None:
        found = (folder / name).read_text()
        assert old in found
        (folder / name).write_text(found.replace(old, new))

    return damage


def cut(name: str, size: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-size])


def gone(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def a_folder(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def pickled(place: str, held: object) -> Damage:
    """Put a .bin file in the place of the weights. held: its bytes, or what torch stores in it."""

    def damage(folder: Path) -> None:
        (folder / place / "model.safetensors").unlink(missing_ok=True)
        path = folder / place / "pytorch_model.bin"
        path.write_bytes(held) if isinstance(held, bytes) else torch.save(held, path)

    return damage


def weights(change: Callable[[State], object], name: str = "model.safetensors") -> Damage:
    def damage(folder: Path) -> None:
        state = read_state(folder / name)
        change(state)
        write_state(folder / name, state)

    return damage


def read_state(path: Path) -> State:
    """Copies of the tensors in a weight file: safetensors maps it, and it may be written again."""
    state = load_file(path) if path.suffix == ".safetensors" else torch.load(path)
    return {key: value.clone() for key, value in state.items()}


def write_state(path: Path, state: State) -> None:
    """Write a weight file of the format that its name says."""
    if path.suffix == ".safetensors":
        save_file(state, path, {"format": "pt"})
    else:
        torch.save(state, path)


def tensors(name: str = "model.safetensors", without: str = "", **values: Tensor) -> Damage:
    """Drop the weights whose keys start so, and put others in (dots of keys are written __)."""

    def change(state: State) -> None:
        for key in [key for key in state if without and key.startswith(without)]:
            del state[key]
        state.update({name.replace("__", "."): value for name, value in values.items()})

    return weights(change, name)


def fill_disk(monkeypatch, name: str, turn: int = 1) -> None:
    """Let the disk be full from the n-th time on that a file whose name holds this is flushed."""
    sync, turns = os.fsync, count(1)

    def full(number: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{number}") and next(turns) >= turn:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(number)

    monkeypatch.setattr(os, "fsync", full)


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.path}",)


def with_code(place: str) -> Damage:
    return lambda folder: pickled(place, {"weight": Evil(folder.parent / "ran")})(folder)


def renamed(*names: str) -> Damage:
    """Give tokens of the tokenizer other names."""

    def damage(folder: Path) -> None:
        path = folder / "tokenizer.json"
        text = path.read_text()
        for name in names:
            assert name in text
            text = text.replace(name, f"{name[:3]}no{name[3:]}")
        path.write_text(text)

    return damage


def inspected(capsys, folder: Path | str, *words: str) -> tuple[int, dict]:
    """Exit code and report of `inspect`, whose only error is one line about faults."""
    capsys.readouterr()
    report: dict = {"memory": {}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            files, "table", lambda found: report.update(findings=[*map(asdict, found)]) or ()
        )
        patch.setattr(files, "memory_table", lambda memory, _: report.update(memory=memory) or ())
        code = main.main(["inspect", f"--model_path={folder}", *words])
    errors = [
        line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")
    ]
    assert len(errors) == (code == 1), errors
    return code, report


def rows(report: dict) -> dict[tuple[str, str], dict]:
    """The rows about files by part and item."""
    return {(row["part"], row["item"]): row for row in report["findings"]}


def faults(report: dict) -> dict[tuple[str, str], dict]:
    """The rows about files that are at fault; every fault is told once."""
    wrong = [row for row in report["findings"] if row["state"] == "FAULT"]
    told = {(row["part"], row["item"]): row for row in wrong}
    assert len(told) == len(wrong)
    return told


def generated(capsys, folder: Path, *words: str) -> tuple[int, str]:
    """Exit code of `generate_images`, and what it says on stderr, apart from progress."""
    words = "generate_images", f"--model_path={folder}", "--prompt=a cat", *words
    code = main.main([*words, f"--output_dir={folder.parent / 'out'}"])
    return code, without_progress(capsys.readouterr().err)


def refused(capsys, folder: Path, *words: str) -> str:
    """Check that `generate_images` refuses before the first image, and return its one line."""
    code, said = generated(capsys, folder, *words)
    assert code == 2 and said.startswith("error: ") and said.count("\n") == 1, said
    assert not list(folder.parent.glob("out/img/*"))
    return said.strip()
