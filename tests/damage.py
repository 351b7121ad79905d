"""Ways to damage a checkpoint folder, and what `inspect` and `generate_images` say about it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file
from said import without_progress
from torch import Tensor

import main

Damage = Callable[[Path], object]
State = dict[str, Tensor]


def entry(name: str, value: object, place: str = ".") -> Damage:
    """Change an entry of a config.json."""

    def damage(folder: Path) -> None:
        path = folder / place / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return damage


def vqgan(name: str, value: object) -> Damage:
    """Change a size in vqgan.yaml."""

    def damage(folder: Path) -> None:
        path = folder / "tokenizer" / "vqgan.yaml"
        document = yaml.safe_load(path.read_text())
        params = document["model"]["params"]
        (params if name in params else params["ddconfig"])[name] = value
        path.write_text(yaml.safe_dump(document))

    return damage


def content(name: str, text: bytes) -> Damage:
    """Replace a file."""
    return lambda folder: (folder / name).write_bytes(text)


def cut(name: str, size: int) -> Damage:
    """Cut bytes off a file's end."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-size])


def gone(*names: str) -> Damage:
    """Remove files and folders."""

    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def a_folder(name: str) -> Damage:
    """Put a folder in the place of a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def pickled(place: str, text: bytes) -> Damage:
    """Put a .bin file in the place of the weights."""

    def damage(folder: Path) -> None:
        (folder / place / "model.safetensors").unlink()
        (folder / place / "pytorch_model.bin").write_bytes(text)

    return damage


def weights(change: Callable[[State], object], name: str = "model.safetensors") -> Damage:
    """Change the tensors in a weight file."""

    def damage(folder: Path) -> None:
        state = load_file(folder / name)
        change(state)
        save_file(state, folder / name, {"format": "pt"})

    return damage


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.path}",)


def with_code(place: str) -> Damage:
    """Put a .bin file that would run code in the place of weights."""

    def damage(folder: Path) -> None:
        (folder / place / "model.safetensors").unlink()
        evil = {"weight": Evil(folder.parent / "ran")}
        torch.save(evil, folder / place / "pytorch_model.bin")

    return damage


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
    code = main.main(["inspect", "--json", f"--model_path={folder}", *words])
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if not line.startswith("note: ")]
    assert len(errors) == (code == 1), said.err
    return code, json.loads(said.out)


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
