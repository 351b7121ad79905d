"""Files that are cut, damaged, missing, of another network or malicious,
each as a user's run meets it.
"""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import write_shards

import main
from drafters.loading import load_drafter
from models.base import TargetOptions
from models.codecs.vqgan_files import load_vqgan
from models.registry import load_target

CPU = torch.device("cpu")
KINDS = ("safetensors", "bin", "sharded safetensors", "sharded bin")


@pytest.fixture(params=["target", "drafter"])
def part(request, checkpoint, folder) -> tuple[Path, Callable[[], object]]:
    """A network's folder, and what loads it."""
    if request.param == "target":
        return folder, lambda: load_target("tiny", str(folder), TargetOptions(torch.float32, CPU))
    target = load_target("tiny", str(checkpoint), TargetOptions(torch.float32, CPU))
    return folder / "drafter", lambda: load_drafter(str(folder / "drafter"), target).network


def store(folder: Path, kind: str) -> Path:
    """Store a network's weights as files of this kind; returns one of them."""
    if kind.startswith("sharded"):
        return folder / write_shards(folder, kind.split()[1])[0]
    if kind == "bin":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        return folder / "pytorch_model.bin"
    return folder / "model.safetensors"


def read(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


def write(path: Path, state: dict[str, torch.Tensor]) -> None:
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.99])
def test_cut_files(kept, kind, part) -> None:
    home, load = part
    path = store(home, kind)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ValueError, match=path.name):
        load()


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind, part) -> None:
    home, load = part
    path = store(home, kind)
    path.write_bytes(b"\xff" * 50 + path.read_bytes()[50:-50] + b"\xff" * 50)
    with pytest.raises(ValueError, match=path.name):
        load()


@pytest.mark.parametrize("kind", KINDS)
def test_missing_files(kind, part) -> None:
    home, load = part
    path = store(home, kind)
    path.unlink()
    with pytest.raises(
        ValueError, match=path.name if kind.startswith("sharded") else "no weights in .*model"
    ):
        load()


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_another_network(kind, part) -> None:
    home, load = part
    path = store(home, kind)
    state = read(path)
    missing, wide = sorted(name for name in state if "proj" in name)[:2]
    del state[missing]
    write(path, state | {wide: torch.zeros(3, 3), "stranger": torch.zeros(1)})
    with pytest.raises(ValueError) as error:
        load()
    for words in (f"missing key {missing}", "unexpected key stranger", f"{wide} has shape (3, 3)"):
        assert words in str(error.value)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}']
)
def test_damaged_indexes(content, suffix, part) -> None:
    home, load = part
    store(home, f"sharded {suffix}")
    index = next(home.glob("*.index.json"))
    index.write_text(content)
    with pytest.raises(ValueError, match=index.name):
        load()


def test_an_index_that_names_the_wrong_shard_does_no_harm(part) -> None:
    home, load = part
    store(home, "sharded safetensors")
    index = next(home.glob("*.index.json"))
    placed = json.loads(index.read_text())["weight_map"]
    names = sorted(set(placed.values()))
    swapped = {key: names[1 - names.index(name)] for key, name in placed.items()}
    index.write_text(json.dumps({"weight_map": swapped}))
    load()


class Payload:
    """What a malicious file holds: a call made while it is read."""

    def __init__(self, witness: Path):
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize(
    "place", ["pytorch_model.bin", "drafter/pytorch_model.bin", "tokenizer/vqgan.ckpt", "shard"]
)
@pytest.mark.parametrize("form", ["zip", "old", "bare pickle"])
def test_files_that_run_code_are_refused(form, place, folder, tmp_path, capsys) -> None:
    """By the loaders of weights, drafter and VQGAN, and by `inspect`."""
    path, witness = folder / place, tmp_path / "ran"
    if place == "shard":
        path = folder / write_shards(folder, "bin")[0]
    else:
        next(path.parent.glob("*.safetensors")).unlink()
    content = {"state_dict": {"quant_conv.bias": Payload(witness)}}
    with path.open("wb") as file:
        if form == "bare pickle":
            pickle.dump(Payload(witness), file, protocol=2)
        else:
            torch.save(content, file, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(ValueError, match=path.name):
        if place.startswith("tokenizer"):
            load_vqgan(folder / "tokenizer")
        target = load_target("tiny", str(folder), TargetOptions(torch.float32, CPU))
        load_drafter(str(folder / "drafter"), target)
    assert main.main(["inspect", "--model_path", str(folder)]) == 1
    assert path.name in capsys.readouterr().out and not witness.exists()
    with path.open("rb") as file:  # the payload works where code is allowed
        _ = pickle.load(file) if form == "bare pickle" else torch.load(file, weights_only=False)
    assert witness.exists()
