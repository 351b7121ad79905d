"""Random checkpoints in the public layout, written a shard at a time."""

import json

import torch
from safetensors.torch import save_file

import main
from models.base import TargetOptions
from models.registry import load_target
from scripts.tools import random_checkpoint
from scripts.tools.random_checkpoint import vocabulary, write


def test_a_random_checkpoint_is_anoles_in_small(tmp_path, monkeypatch) -> None:
    sizes = []

    def save(tensors, *words) -> None:
        sizes.append(sum(tensor.nbytes for tensor in tensors.values()))
        save_file(tensors, *words)

    monkeypatch.setattr(random_checkpoint, "save_file", save)
    monkeypatch.setattr(random_checkpoint, "SHARD_BYTES", 20_000_000)
    folder = tmp_path / "random"
    write(output=str(folder), scale=32, layers=1)
    assert len(sizes) > 2 and max(sizes) <= 20_000_000, "all at once are too much at full size"
    assert main.main(["inspect", "--model", "anole", "--model_path", str(folder)]) == 0
    target = load_target("anole", str(folder), TargetOptions(torch.float32, torch.device("cpu")))
    assert (target.grid.tokens, target.vocab.first_id, target.vocab.size) == (1024, 4, 8192)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {path.name for path in folder.glob("*.safetensors")}
    assert files == set(index["weight_map"].values()) and len(files) == 2
    assert index["metadata"]["total_size"] == sum(sizes[-2:])


def test_its_names_have_chameleons_ids() -> None:
    ids = vocabulary()
    assert len(ids) == 65536 and sorted(ids.values()) == list(range(65536))
    names = ("<s>", "<pad>", "IMGIMGAZ", "<eoss>", "<racm3:break>", "<reserved08706>")
    assert [ids[name] for name in names] == [0, 1, 4, 8196, 8197, 8710]
