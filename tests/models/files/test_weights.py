"""Weights in every file format: all give the same network; files at fault are refused by name."""

import json
import pickle
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from browser import thinned
from damage import Evil, read_state, write_state
from families import same_weights
from small import loaded, store_weights

import main
from drafters.loading import load_drafter
from models.codecs.vqgan_files import load_vqgan
from models.target import TargetModel

KINDS = ("safetensors", "bin", "sharded safetensors", "sharded bin")


def drafter(folder: Path, target: TargetModel) -> torch.nn.Module:
    return load_drafter(str(folder / "drafter"), target)


@pytest.mark.parametrize("kind", [*KINDS[1:], "old bin"])
def test_file_formats_give_the_same_weights(kind, checkpoint, folder) -> None:
    store_weights(folder, kind)
    assert same_weights(loaded(folder).transformer, loaded(checkpoint).transformer)


def test_a_drafter_without_an_embedding_takes_the_targets(checkpoint, folder) -> None:
    path, target = folder / "drafter" / "model.safetensors", loaded(checkpoint)
    state = read_state(path)
    own = state.pop("embed_tokens.weight")
    write_state(path, state)
    embedding = drafter(folder, target).embedding
    assert embedding.weight is target.transformer.embedding.weight
    assert torch.equal(embedding.weight, own)  # drafters are trained with it
    write_state(path, state | {"embed_tokens.weight": own + 1})
    assert torch.equal(drafter(folder, target).embedding.weight, own + 1)


@pytest.fixture(params=["target", "drafter"])
def part(request, checkpoint, folder) -> tuple[Path, Callable[[], object]]:
    if request.param == "target":
        return folder, lambda: loaded(folder)
    return folder / "drafter", lambda: drafter(folder, loaded(checkpoint))


def cut(path: Path, kept: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])


def scratch(path: Path) -> None:
    path.write_bytes(b"\xff" * 50 + path.read_bytes()[50:-50] + b"\xff" * 50)


DAMAGE = {f"cut to {kept}": partial(cut, kept=kept) for kept in (0.0, 0.001, 0.5, 0.99)}
DAMAGE |= {"scratched": scratch, "missing": Path.unlink}


@pytest.mark.parametrize(("damage", "kind"), thinned(product(DAMAGE, KINDS)))
def test_files_that_cannot_be_read_are_named(damage, kind, part) -> None:
    home, load_part = part
    path = store_weights(home, kind)
    DAMAGE[damage](path)
    nothing = not path.exists() and not kind.startswith("sharded")
    words = "expected a checkpoint, got a folder without model" if nothing else path.name
    with pytest.raises(ValueError, match=words):
        load_part()


@pytest.mark.parametrize("kind", thinned(KINDS))
def test_files_of_another_network(kind, part) -> None:
    home, load_part = part
    path = store_weights(home, kind)
    state = read_state(path)
    missing, wide = sorted(name for name in state if "proj" in name)[:2]
    del state[missing]
    write_state(path, state | {wide: torch.zeros(3, 3), "stranger": torch.zeros(1)})
    with pytest.raises(ValueError) as error:
        load_part()
    for words in (f"missing key {missing}", "unexpected key stranger", f"{wide} has shape (3, 3)"):
        assert words in str(error.value)


def test_rotary_frequencies_of_older_files_are_passed_over(part) -> None:
    home, load_part = part
    path = store_weights(home, KINDS[0])
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    write_state(path, read_state(path) | frequencies)
    load_part()


INDEXES = "", "{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'


@pytest.mark.parametrize(("suffix", "content"), thinned(product(("safetensors", "bin"), INDEXES)))
def test_damaged_indexes(suffix, content, part) -> None:
    home, load_part = part
    store_weights(home, f"sharded {suffix}")
    index = next(home.glob("*.index.json"))
    index.write_text(content)
    with pytest.raises(ValueError, match=index.name):
        load_part()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_an_index_of_files_that_are_gone_does_no_harm(name, part) -> None:
    home, load_part = part
    (home / f"{name}.index.json").write_text('{"weight_map": {"a": "absent"}}')
    load_part()


def test_an_index_that_names_the_wrong_shard_does_no_harm(part) -> None:
    home, load_part = part
    store_weights(home, "sharded safetensors")
    index = next(home.glob("*.index.json"))
    placed = json.loads(index.read_text())["weight_map"]
    names = sorted(set(placed.values()))
    swapped = {key: names[1 - names.index(name)] for key, name in placed.items()}
    index.write_text(json.dumps({"weight_map": swapped}))
    load_part()


PLACES = "pytorch_model.bin", "drafter/pytorch_model.bin", "tokenizer/vqgan.ckpt", "shard"


@pytest.mark.parametrize(("form", "place"), thinned(product(("zip", "old", "bare pickle"), PLACES)))
def test_files_that_run_code_are_refused(form, place, folder, tmp_path, capsys) -> None:
    """By the loaders of weights, drafter and VQGAN, and by `inspect`."""
    path, evil = folder / place, Evil(tmp_path / "ran")
    if place == "shard":
        path = store_weights(folder, "sharded bin")
    else:
        next(path.parent.glob("*.safetensors")).unlink()
    content = {"state_dict": {"quant_conv.bias": evil}}
    with path.open("wb") as file:
        if form == "bare pickle":
            pickle.dump(evil, file, protocol=2)
        else:
            torch.save(content, file, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(ValueError, match=path.name):
        if place.startswith("tokenizer"):
            load_vqgan(folder / "tokenizer")
        drafter(folder, loaded(folder))
    assert main.main(["inspect", "--model_path", str(folder)]) == 1
    assert path.name in capsys.readouterr().out and not evil.path.exists()
    with path.open("rb") as file:  # the payload works where code is allowed
        _ = pickle.load(file) if form == "bare pickle" else torch.load(file, weights_only=False)
    assert evil.path.exists()
