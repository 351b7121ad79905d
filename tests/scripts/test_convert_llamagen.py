"""Original LlamaGen weights, laid out by hand, become the small checkpoint they came from."""

from argparse import Namespace

import pytest
import torch
from safetensors.torch import load_file
from small import small_settings
from small_llamagen import open_llamagen
from torch import Tensor

from models.targets.llamagen import LlamaGen
from scripts.tools import convert_llamagen
from scripts.tools.convert_llamagen import convert
from support.json_files import read_object

PARTS = {
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The original's layout, by the description of its network."""
    weights = {
        "tok_embeddings.weight": state["model.embed_tokens.weight"],
        "norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    for name in ("cap_proj.fc1.weight", "cap_proj.fc2.weight", "uncond_embedding"):
        weights[f"cls_embedding.{name}"] = state[f"model.cls_embedding.{name}"]
    for i in range(2):
        layer = f"model.layers.{i}"
        rows = [state[f"{layer}.self_attn.{part}_proj.weight"] for part in "qkv"]
        weights[f"layers.{i}.attention.wqkv.weight"] = torch.cat(rows)
        for theirs, ours in PARTS.items():
            weights[f"layers.{i}.{theirs}.weight"] = state[f"{layer}.{ours}.weight"]
    return weights


def test_there_and_back(llamagen, monkeypatch) -> None:
    folder, state = llamagen, load_file(llamagen / "model.safetensors")
    source, output = folder.parent / "t2i_S_256.pt", folder.parent / "converted"
    weights = original(state) | {"freqs_cis": torch.zeros(9, 4, 2)}
    torch.save({"model": weights, "steps": 3, "args": Namespace(lr=1e-4)}, source)
    monkeypatch.setattr(convert_llamagen, "SIDES", {"_256": 4})
    with pytest.raises(ValueError, match="--heads: expected the model's attention heads; its"):
        convert(source=str(source), output=str(output))
    convert(source=str(source), output=str(output), heads=2)
    modes = {(output / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1
    converted = load_file(output / "model.safetensors")
    assert converted.keys() == state.keys()
    assert all(torch.equal(converted[key], state[key]) for key in state)
    (folder / "drafter").rename(output / "drafter")
    session = open_llamagen(small_settings(output, model="llamagen"))
    assert session.target.spec == LlamaGen().spec(read_object(folder / "config.json"))


def test_the_name_tells_the_side_and_nothing_else_does(tmp_path) -> None:
    source = tmp_path / "t2i.pt"
    torch.save({}, source)
    with pytest.raises(ValueError, match="--source: expected a name that ends in _256 or _512"):
        convert(source=str(source), output=str(tmp_path))
    with pytest.raises(ValueError, match=r"--source .*t2i_XL_stage1_256\.pt: cannot read"):
        convert(source=str(tmp_path / "t2i_XL_stage1_256.pt"), output=str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cls_embedding.table.weight": torch.zeros(1)}, "unexpected key cls_embedding.table"),
        ({"tok_embeddings.weight": None}, "missing key model.embed_tokens.weight"),
    ],
)
def test_other_weights_are_refused(change, message, llamagen) -> None:
    state = original(load_file(llamagen / "model.safetensors")) | change
    source, output = llamagen.parent / "t2i_512.pt", llamagen.parent / "converted"
    torch.save({"model": {key: value for key, value in state.items() if value is not None}}, source)
    with pytest.raises(ValueError, match=f"--source .*t2i_512.pt: {message}"):
        convert(source=str(source), output=str(output))
    assert not output.exists()
