"""Reading checkpoints: a fault is a ValueError that names file, flag or key;
all file formats give the same weights.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import byte_tokenizer, write_shards

from drafters.loading import load_drafter
from models.base import TargetOptions
from models.registry import load_target

CPU = torch.device("cpu")


def load(folder: Path):
    return load_target("tiny", str(folder), TargetOptions(torch.float32, CPU))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_weights(one, other) -> bool:
    ours, theirs = one.transformer.state_dict(), other.transformer.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", ["sharded safetensors", "sharded bin", "single bin", "old bin"])
def test_file_formats_give_the_same_weights(kind, checkpoint, folder) -> None:
    if kind in ("single bin", "old bin"):  # torch wrote no zip files before 1.6
        zipped = kind == "single bin"
        torch.save(
            weights(folder), folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped
        )
        (folder / "model.safetensors").unlink()
    else:
        write_shards(folder, kind.split()[1])
    assert same_weights(load(folder), load(checkpoint))


def test_a_drafter_without_an_embedding_takes_the_targets(checkpoint, folder) -> None:
    path, target = folder / "drafter" / "model.safetensors", load(checkpoint)
    # copies: older safetensors map the file, which is written anew below
    state = {name: tensor.clone() for name, tensor in load_file(path).items()}
    own = state.pop("embed_tokens.weight")
    save_file(state, path)
    head = load_drafter(str(folder / "drafter"), target).network
    assert head.embedding.weight is target.transformer.embedding.weight
    assert torch.equal(head.embedding.weight, own)  # drafters are trained with it
    save_file(state | {"embed_tokens.weight": own + 1}, path)
    assert torch.equal(
        load_drafter(str(folder / "drafter"), target).network.embedding.weight, own + 1
    )


def damage(folder: Path, change) -> None:
    state = weights(folder)
    change(state)
    save_file(state, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda s: s.update({"model.layers.1.mlp.down_proj.weight": torch.zeros(1, 72)}),
            r"model.layers.1.mlp.down_proj.weight has shape \(1, 72\), expected \(32, 72\)",
        ),
        (
            lambda s: s.update({"lm_head.weight": s["lm_head.weight"][:20].clone()}),
            "lm_head.weight has shape",
        ),
        (
            lambda s: s.update({"lm_head.weight": torch.cat([s["lm_head.weight"]] * 2)}),
            r"lm_head.weight has shape \(\d+, 32\), expected \d+ rows",
        ),
        (
            lambda s: s.update({"model.norm.weight": torch.tensor(1.0)}),
            r"model.norm.weight has shape \(\)",
        ),
    ],
    ids=["one row for all", "short head", "tall head", "scalar"],
)
def test_differences_are_named(change, words, folder) -> None:
    damage(folder, change)
    with pytest.raises(ValueError, match=words):
        load(folder)


@pytest.mark.parametrize(
    "content", [[torch.zeros(2)], {"model.norm.weight": 1.0}], ids=["a list", "a number"]
)
def test_a_bin_file_that_holds_no_tensors(content, folder) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        load(folder)


@pytest.mark.parametrize(
    "entry",
    [
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        {"hidden_act": "gelu"},
        {"mlp_bias": True},
    ],
)
def test_networks_that_are_not_built_here_are_refused(entry, folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | entry))
    with pytest.raises(ValueError, match=rf"config\.json: {next(iter(entry))}"):
        load(folder)


def test_files_that_do_not_belong_together(folder) -> None:
    """A VQGAN with other codes would fail at the very end,
    a tokenizer with more ids in the middle of a prompt.
    """
    (folder / "tokenizer" / "text_tokenizer.json").unlink()
    byte_tokenizer(23).save(str(folder / "tokenizer" / "text_tokenizer.json"))
    with pytest.raises(ValueError, match="23 image codes.*24 codes"):
        load(folder)


def test_a_drafter_that_is_not_there(folder, checkpoint) -> None:
    shutil.rmtree(folder / "drafter")
    with pytest.raises(ValueError, match="--drafter_path"):
        load_drafter(str(folder / "drafter"), load(checkpoint))
