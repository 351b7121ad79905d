"""Lumina-mGPT: sizes and ends of rows."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from browser import thinned
from fakes import finished
from families import assert_chosen
from small import LUMINA, open_lumina, small_settings
from torch import Tensor

from configs.model import EngineSettings
from configs.schema import MethodSettings
from configs.targets import TARGETS, parse_size
from decoding.images import Job
from drafters.loading import load_drafter
from models.base import Context
from runs.session import open_session
from scripts.checkpoints.chameleon import write_checkpoint
from scripts.checkpoints.parts import write_drafter
from support.json_files import read_object

EAGLE = MethodSettings("eagle2", depth=3, width=3, nodes=9)
JOBS = [Job("a", "a cat", 11), Job("b", "two large dogs", 12), Job("c", "fog", 13)]


# 4 rows of 6, 4 x 4 and 6 rows of 2 image tokens
@pytest.mark.parametrize("size", thinned(["96x64", "64", "32x96"]))
def test_every_code_is_chosen_by_an_uncached_pass(size, lumina_folder) -> None:
    engine = open_lumina(lumina_folder, size).open_engine(MethodSettings("ar"))
    images = finished(engine, JOBS)
    for image in images.values():
        assert_chosen(engine, image)
    assert len({tuple(image.codes.tolist()) for image in images.values()}) == 3


def test_trees_run_on_across_row_ends(lumina_folder) -> None:
    """Where rows hold two tokens, a round that accepts two has crossed an end."""
    session = open_lumina(lumina_folder, "32x96")
    engine = session.open_engine(MethodSettings("eagle2", depth=7, width=3, nodes=12))
    accepted = [stats.accepted for step in engine.generate(JOBS) for stats in step.rounds]
    assert max(accepted) >= 2


def test_images_are_of_the_size(lumina_folder) -> None:
    """Prompts name width and height in words, and rows before columns by two tokens."""
    target = open_lumina(lumina_folder, "96x64").target
    words, ids = target.prompts.words, target.prompt("a cat", 1).ids[0].tolist()
    assert "an image of 96x64 acc" in words.tokenizer.decode(ids, skip_special_tokens=False)
    assert ids[-2:] == [words["<reserved08802>"], words["<reserved08803>"]]
    assert target.to_image(torch.zeros(1, 24, dtype=torch.long)).shape == (1, 64, 96, 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", (1024, 1024)), ("1024x576", (1024, 576)), ("512x1024", (512, 1024))],
)
def test_sizes(text, size) -> None:
    assert parse_size(text, TARGETS["lumina_mgpt"].sizes) == size


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("a/Lumina-mGPT-7B-512", "512"), ("x/y-1024/", "1024"), ("mine", "768"), ("b-512x", "768"),
        ("models--a--b-512/snapshots/1f-1024", "512"), ("b-1024/.", "1024"), (".", "512"),
    ],
)  # fmt: skip
def test_the_size_is_that_of_the_folders_name(path, size, tmp_path, monkeypatch) -> None:
    (tmp_path / "b-512").mkdir()
    monkeypatch.chdir(tmp_path / "b-512")
    assert EngineSettings(model="lumina_mgpt", model_path=path).target_size == size


def public_head(folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """Write a random head in the layout of sihwanpark/LANTERN-Lumina-mGPT-7B-768.

    That is what LANTERN's `cnets_lumina_mgpt.Model` loads, strictly: one Chameleon layer with its
    input norm, and norms of queries and keys that all heads share, (1, head_dim).
    """
    target = read_object(folder / "config.json")
    width, inner, ids = (target[f"{n}_size"] for n in ("hidden", "intermediate", "vocab"))
    heads = target["num_attention_heads"]
    # entries of LANTERN's data/configs/lumina_mgpt_config.json
    config = {
        "architectures": ["ChameleonForConditionalGeneration"], "attention_bias": False,
        "attention_dropout": 0.0, "dropout": 0.05, "hidden_act": "silu", "hidden_size": width,
        "intermediate_size": inner, "max_position_embeddings": 64, "mlp_bias": False,
        "model_parallel_size": 1, "model_type": "chameleon", "num_attention_heads": heads,
        "num_hidden_layers": 1, "num_key_value_heads": heads, "rms_norm_eps": 1e-05,
        "rope_scaling": None, "rope_theta": 10000.0, "swin_norm": False,
        "tie_word_embeddings": False, "vocab_size": ids, "vq_config": {"n_embed": 24},
    }  # fmt: skip
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    shapes = {
        "embed_tokens.weight": (ids, width), "fc.weight": (width, 2 * width), "fc.bias": (width,),
        **{f"{attention}{name}_proj.weight": (width, width) for name in "qkvo"},
        **{f"{attention}{n}_norm.{kind}": (1, width // heads)
           for n in "qk" for kind in ("weight", "bias")},
        f"{mlp}gate_proj.weight": (inner, width), f"{mlp}up_proj.weight": (inner, width),
        f"{mlp}down_proj.weight": (width, inner), "layers.0.input_layernorm.weight": (width,),
        "layers.0.post_attention_layernorm.weight": (width,),
    }  # fmt: skip
    noise = torch.Generator().manual_seed(4)
    state = {name: torch.randn(shape, generator=noise) / 4 for name, shape in shapes.items()}
    place = folder.parent / "LANTERN-Lumina-mGPT-7B-768"
    write_drafter(place, config, state)
    return config, state


def plain_head(config: dict, state: dict[str, Tensor], ids: Tensor, features: Tensor) -> Tensor:
    """Return what the head predicts (n, hidden), by its definition and without a cache."""
    heads, n = config["num_attention_heads"], len(ids)

    def rms(x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt()
        return x * scale * state[f"layers.0.{name}.weight"]

    def turned(x: Tensor, name: str) -> Tensor:  # (n, heads, head_dim)
        norm = (state[f"layers.0.self_attn.{name}_norm.{kind}"] for kind in ("weight", "bias"))
        x = F.layer_norm(x, x.shape[-1:], eps=1e-5) * next(norm) + next(norm)
        half = x.shape[-1] // 2
        angle = torch.outer(torch.arange(n), 1e4 ** -(torch.arange(half) / half))[:, None]
        left, right = x.split(half, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    x = torch.cat([state["embed_tokens.weight"][ids], features], -1)
    x = x @ state["fc.weight"].T + state["fc.bias"]
    inner = rms(x, "input_layernorm")
    q, k, v = (
        (inner @ state[f"layers.0.self_attn.{name}_proj.weight"].T).view(n, heads, -1)
        for name in "qkv"
    )
    q, k = turned(q, "q"), turned(k, "k")
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    scores += torch.full((n, n), -torch.inf).triu(1)
    read = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)
    x = x + read @ state["layers.0.self_attn.o_proj.weight"].T
    inner = rms(x, "post_attention_layernorm")
    gate, up = (inner @ state[f"layers.0.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return x + (F.silu(gate) * up) @ state["layers.0.mlp.down_proj.weight"].T


def test_the_public_head_of_lantern_is_read(tmp_path) -> None:
    folder = write_checkpoint(tmp_path / "Lumina-mGPT-7B-768", LUMINA)
    config, state = public_head(folder)
    drafter = tmp_path / "LANTERN-Lumina-mGPT-7B-768"
    settings = small_settings(folder, "fp32", "lumina_mgpt")
    session = open_session(replace(settings, drafter_path=str(drafter), method=EAGLE))
    head = load_drafter(str(drafter), session.target)
    ids = torch.arange(9) * 7 % config["vocab_size"]
    features = torch.randn(9, config["hidden_size"], generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = head(ids[None], features[None], Context(torch.arange(9)[None]))[0]
    torch.testing.assert_close(found, plain_head(config, state, ids, features), rtol=0, atol=1e-5)
    images = finished(session.open_engine(EAGLE), JOBS)
    plain = finished(session.open_engine(MethodSettings("ar")), JOBS)
    assert all(torch.equal(images[name].codes, plain[name].codes) for name in plain)
