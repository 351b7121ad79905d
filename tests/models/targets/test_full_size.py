"""The published sizes of Chameleon 7B, LlamaGen and their drafters, key by key."""

import json
import shutil
import struct
from itertools import product
from pathlib import Path

import pytest
import torch
from small import byte_tokenizer, shapes_of

import main
from configs.targets import META_FILES
from drafters.eagle import EagleHead
from drafters.kinds import eagle_keys
from drafters.loading import drafter_network
from models.base import ImageRope
from models.codecs.vqgan import VqganConfig, write_config
from models.codecs.vqgan_files import build_vqmodel, to_taming
from models.files.network import public_state
from models.targets.chameleon import Chameleon
from models.targets.llamagen import LlamaGen, LlamaGenNetwork, llamagen_keys

HIDDEN, MLP, VOCAB, CODES = 4096, 11008, 65536, 8192
CONFIG = {
    "model_type": "chameleon", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": MLP,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "swin_norm": False, "vq_config": {"n_embed": CODES},
}  # fmt: skip
VQGAN = VqganConfig(128, (1, 1, 2, 2, 4), 2, 256, 256, CODES, 512)
Shapes = dict[str, tuple[int, ...]]


def block(prefix: str, hidden: int, mlp: int, first_norm: bool = True) -> Shapes:
    """The published keys of one layer without norms of heads."""
    shapes = {f"self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
    shapes |= {f"mlp.{name}_proj.weight": (mlp, hidden) for name in ("gate", "up")}
    shapes |= {"mlp.down_proj.weight": (hidden, mlp), "post_attention_layernorm.weight": (hidden,)}
    shapes |= {"input_layernorm.weight": (hidden,)} if first_norm else {}
    return {prefix + name: shape for name, shape in shapes.items()}


def with_norms(prefix: str, norm_rows: int) -> Shapes:
    """The same of Chameleon; norm_rows: 32 for Anole, 1 for Lumina-mGPT."""
    names = product("qk", ("weight", "bias"))
    norms = {f"{prefix}self_attn.{name}_norm.{part}": (norm_rows, 128) for name, part in names}
    return block(prefix, HIDDEN, MLP) | norms


def target_shapes(norm_rows: int) -> Shapes:
    names = ("model.embed_tokens.weight", "lm_head.weight")
    shapes: Shapes = dict.fromkeys(names, (VOCAB, HIDDEN)) | {"model.norm.weight": (HIDDEN,)}
    for layer in range(32):
        shapes |= with_norms(f"model.layers.{layer}.", norm_rows)
    return shapes


def drafter_shapes(norm_rows: int) -> Shapes:
    shapes: Shapes = {"embed_tokens.weight": (VOCAB, HIDDEN), "fc.weight": (HIDDEN, 2 * HIDDEN)}
    return shapes | {"fc.bias": (HIDDEN,)} | with_norms("layers.0.", norm_rows)


def count(shapes: Shapes) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes.values())


@pytest.mark.parametrize(
    ("norm_rows", "parameters"), [(32, 7_013_666_816), (1, 7_013_158_912)], ids=["Anole", "Lumina"]
)
def test_chameleon_7b(norm_rows, parameters) -> None:
    shapes, built = target_shapes(norm_rows), Chameleon().network(CONFIG)
    assert len(shapes) == 419 and count(shapes) == parameters
    assert built.keys.keys() == shapes.keys() and built.faults(shapes) == []
    assert built.faults(shapes | {"model.vqmodel.encoder.conv_in.weight": (128, 3, 3, 3)}) == []
    held = sum(weight.numel() for weight in built.module.parameters())
    # the head of image codes only, norms of every head
    assert held == 7_013_666_816 - (VOCAB - CODES) * HIDDEN
    assert all(weight.is_meta for weight in built.module.parameters())


@pytest.mark.parametrize(
    ("norm_rows", "parameters"), [(32, 504_393_728), (1, 504_377_856)], ids=["Anole", "Lumina"]
)
def test_drafters(norm_rows, parameters) -> None:
    shapes = drafter_shapes(norm_rows)
    config, target = CONFIG | {"num_hidden_layers": 1}, Chameleon().network(CONFIG).module.spec
    built = drafter_network(config, Chameleon().drafter(config, target), target, "config.json")
    assert len(shapes) == 16 and count(shapes) == parameters
    assert built.keys.keys() == shapes.keys() and built.faults(shapes) == []
    assert sum(weight.numel() for weight in built.module.parameters()) == 504_393_728
    del shapes["embed_tokens.weight"]
    assert built.faults(shapes) == []


def write_hollow(path: Path, shapes: Shapes) -> None:
    """A bf16 safetensors file with a true header and holes for numbers: no room on the disk."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * torch.Size(shape).numel()
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)


@pytest.fixture
def anole(tmp_path) -> Path:
    root = tmp_path / "anole"
    folder, drafter = root / "Anole-7b-v0.1-hf", root / "trained_drafters" / "anole_drafter"
    tokenizer = root / "chameleon" / "tokenizer"
    for path in (folder, drafter, tokenizer):
        path.mkdir(parents=True)
    shapes = target_shapes(32)
    placed = {
        name: f"model-0000{1 + i * 3 // len(shapes)}-of-00003.safetensors"
        for i, name in enumerate(shapes)
    }
    for file in set(placed.values()):
        write_hollow(folder / file, {name: shapes[name] for name in shapes if placed[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_hollow(drafter / "model.safetensors", drafter_shapes(32))
    (drafter / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 1}))
    byte_tokenizer(CODES).save(str(tokenizer / "text_tokenizer.json"))
    write_config(VQGAN, tokenizer / "vqgan.yaml")
    write_hollow(tokenizer / "vqgan.safetensors", vqgan_shapes())
    return root


def vqgan_shapes() -> Shapes:
    with torch.device("meta"):
        return shapes_of(to_taming(build_vqmodel(VQGAN).state_dict(), 5))


def test_inspect_a_conversion_that_brings_the_whole_vqgan(anole, capsys) -> None:
    """The VQGAN is in the third shard, the text tokenizer in tokenizer.json."""
    folder, tokenizer = anole / "Anole-7b-v0.1-hf", anole / "chameleon" / "tokenizer"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    last = "model-00003-of-00003.safetensors"
    inside = {f"model.vqmodel.{name}": shape for name, shape in vqgan_shapes().items()}
    shapes, placed = target_shapes(32), index["weight_map"]
    own = {name: shape for name, shape in shapes.items() if placed[name] == last}
    write_hollow(folder / last, own | inside)
    index["weight_map"] |= dict.fromkeys(inside, last)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (tokenizer / "text_tokenizer.json").rename(folder / "tokenizer.json")
    shutil.rmtree(tokenizer)
    assert main.main(["inspect", "--model=anole", f"--model_path={folder}"]) == 0
    said = capsys.readouterr().out
    assert "weights model.vqmodel.*: 8192 codes, 512 x 512 pixels" in said
    assert f"{folder}/tokenizer.json" in said


def test_inspect_at_full_size(anole, capsys) -> None:
    """Reads headers only: the files have no contents, and 14 GB of them."""
    words = ["inspect", "--model=anole", "--dtype=bf16", f"--model_path={anole}/Anole-7b-v0.1-hf"]
    words += [f"--drafter_path={anole}/trained_drafters/anole_drafter"]
    assert main.main([*words, "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["target weights"] == 2 * 6_778_785_792
    assert memory["drafter weights"] == 2 * 504_393_728
    assert memory["target keys and values"] == 2 * 2 * 32 * 2 * (4096 + 59) * HIDDEN
    codec = 27.19e6 + 39.3e6 + CODES * 256
    assert memory["image tokenizer"] == pytest.approx(4 * codec, rel=0.03)
    (anole / "chameleon" / "tokenizer" / "vqgan.safetensors").unlink()
    assert main.main(words) == 1
    said = capsys.readouterr().out
    assert "found no vqgan.safetensors or vqgan.ckpt" in said and META_FILES in said


XL = {
    "vocab_size": 16384, "hidden_size": 1280, "intermediate_size": 3584, "num_hidden_layers": 36,
    "num_attention_heads": 20, "num_key_value_heads": 20, "hidden_act": "silu",
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "cls_token_num": 120,
    "caption_dim": 2048, "rope_base": 10000, "input_type": "t2i", "pretraining_tp": 1,
    "attention_bias": False,
}  # fmt: skip


@pytest.mark.parametrize(("block_size", "positions"), [(256, 376), (1024, 1144)])
def test_full_size_keys_shapes_and_number_of_parameters(block_size, positions) -> None:
    spec = LlamaGen().spec(XL | {"block_size": block_size})
    with torch.device("meta"):
        network = LlamaGenNetwork(spec, 2048)
    expected = {
        "model.embed_tokens.weight": (16384, 1280),
        "model.cls_embedding.cap_proj.fc1.weight": (1280, 2048),
        "model.cls_embedding.cap_proj.fc2.weight": (1280, 1280),
        "model.cls_embedding.uncond_embedding": (120, 2048),
        "model.norm.weight": (1280,),
        "lm_head.weight": (16384, 1280),
    }
    for layer in range(36):
        expected |= block(f"model.layers.{layer}.", 1280, 3584)
    assert shapes_of(public_state(network, llamagen_keys(spec))) == expected
    assert sum(weight.numel() for weight in network.transformer.parameters()) == 773_418_240
    assert (spec.head_dim, spec.max_positions) == (64, positions)
    assert spec.image_rope == ImageRope(120, {256: 16, 1024: 32}[block_size])


def test_full_size_drafter_keys_and_shapes() -> None:
    target = LlamaGen().spec(XL | {"block_size": 256})
    names = ("cls_token_num", "rope_base", "attention_bias")
    config = {key: value for key, value in XL.items() if key not in names}
    head_config = config | {"num_hidden_layers": 1, "rms_norm_eps": 1e-6}
    spec = LlamaGen().drafter(head_config, target)
    with torch.device("meta"):
        head = EagleHead(spec)
    assert shapes_of(public_state(head, eagle_keys(spec, True))) == {
        "embed_tokens.weight": (16384, 1280), "fc.weight": (1280, 2560), "fc.bias": (1280,),
        **block("layers.0.", 1280, 3584, first_norm=False),
    }  # fmt: skip
    assert spec.image_rope == ImageRope(119, 16) and spec.norm_eps == 1e-6
