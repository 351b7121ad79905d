"""Reading checkpoints: a fault is a ValueError that names file, flag or key;
all file formats give the same weights.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import Sizes, byte_tokenizer, write_checkpoint, write_shards
from torch import nn

from drafters.loading import load_drafter
from models.base import TargetOptions
from models.files.network import Network, Slot
from models.registry import load_target

CPU = torch.device("cpu")


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


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


def test_drafter_in_a_bin_file(checkpoint, folder) -> None:
    torch.save(
        load_file(folder / "drafter" / "model.safetensors"),
        folder / "drafter" / "pytorch_model.bin",
    )
    (folder / "drafter" / "model.safetensors").unlink()
    target = load(checkpoint)
    one, other = (
        load_drafter(str(path / "drafter"), target).network for path in (folder, checkpoint)
    )
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


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


def test_norms_shared_by_all_heads_are_repeated(tmp_path) -> None:
    sizes = Sizes(shared_norm=True)
    target = load(write_checkpoint(tmp_path / "shared", sizes))
    found = weights(tmp_path / "shared")["model.layers.0.self_attn.q_norm.weight"]
    assert found.shape == (1, 16)
    loaded = target.transformer.blocks.blocks[0].attention.qk_norm.weight
    assert torch.equal(loaded[:2], found.expand(2, -1))


def damage(folder: Path, change) -> None:
    state = weights(folder)
    change(state)
    save_file(state, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("model.norm.weight"), "missing key model.norm.weight"),
        (lambda s: s.update({"model.extra": torch.zeros(2)}), "unexpected key model.extra"),
        (
            lambda s: s.update({"model.norm.weight": torch.zeros(31)}),
            r"model.norm.weight has shape \(31,\), expected \(32,\)",
        ),
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
    ids=["missing", "unexpected", "shape", "one row for all", "short head", "tall head", "scalar"],
)
def test_differences_are_named(change, words, folder) -> None:
    damage(folder, change)
    with pytest.raises(ValueError, match=words):
        load(folder)


def test_all_differences_are_named_at_once(folder) -> None:
    def change(state: dict) -> None:
        state["stranger"] = state.pop("model.norm.weight")
        state["lm_head.weight"] = torch.zeros(3, 3)

    damage(folder, change)
    with pytest.raises(ValueError) as error:
        load(folder)
    for words in (
        "missing key model.norm.weight",
        "unexpected key stranger",
        "lm_head.weight has shape",
    ):
        assert words in str(error.value)


def test_vqgan_weights_inside_the_checkpoint_are_passed_over(checkpoint, folder) -> None:
    damage(folder, lambda state: state.update({"model.vqmodel.quant_conv.weight": torch.zeros(2)}))
    assert same_weights(load(folder), load(checkpoint))


def test_index_without_a_weight_map(folder) -> None:
    write_shards(folder, "safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"index\.json.*weight_map"):
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
    "name",
    ["config.json", "model.safetensors", "tokenizer/text_tokenizer.json", "tokenizer/vqgan.yaml"],
)
def test_missing_files_are_named(name, folder) -> None:
    (folder / name).unlink()
    with pytest.raises(ValueError, match=Path(name).stem):
        load(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer/text_tokenizer.json"])
def test_damaged_files_are_named(name, folder) -> None:
    (folder / name).write_text("{")
    with pytest.raises(ValueError, match=Path(name).name):
        load(folder)


def test_config_without_an_entry(folder) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json.*hidden_size"):
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


def test_a_drafter_of_another_target(folder, checkpoint) -> None:
    config = json.loads((folder / "drafter" / "config.json").read_text())
    (folder / "drafter" / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    with pytest.raises(ValueError, match="hidden_size is 64, the weights hold 32"):
        load_drafter(str(folder / "drafter"), load(checkpoint))


def test_a_drafter_that_is_not_there(folder, checkpoint) -> None:
    shutil.rmtree(folder / "drafter")
    with pytest.raises(ValueError, match="--drafter_path"):
        load_drafter(str(folder / "drafter"), load(checkpoint))


def test_an_unknown_model_lists_the_names() -> None:
    with pytest.raises(ValueError, match="--model: expected .*tiny.*nonsense"):
        load_target("nonsense", ".", TargetOptions(torch.float32, CPU))


def test_rows_of_a_fused_parameter_are_filled_one_after_the_other(tmp_path) -> None:
    keys = {
        "a": Slot("weight", slice(0, 1)),
        "b": Slot("weight", slice(1, 4), source=slice(2, 5)),
    }
    network = Network(nn.Linear(2, 4, bias=False, device="meta"), keys, ignored=("skipped.",))
    a, b = torch.rand(1, 2), torch.rand(6, 2)
    save_file({"a": a, "b": b, "skipped.c": a.clone()}, tmp_path / "model.safetensors")
    network.fill(tmp_path, torch.float32, CPU)
    assert torch.equal(network.module.weight.data, torch.cat([a, b[2:5]]))
