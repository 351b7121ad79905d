"""Keys and shapes of the public LlamaGen checkpoints, written out from their description,
against what is read.
"""

from __future__ import annotations

import pytest
import torch

from drafters.eagle import EagleHead
from drafters.kinds import eagle_keys
from models.base import ImageRope
from models.files.network import public_state
from models.targets.llamagen import LlamaGen, LlamaGenNetwork, llamagen_keys

XL = {
    "vocab_size": 16384, "hidden_size": 1280, "intermediate_size": 3584, "num_hidden_layers": 36,
    "num_attention_heads": 20, "num_key_value_heads": 20, "hidden_act": "silu",
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "cls_token_num": 120,
    "caption_dim": 2048, "rope_base": 10000, "input_type": "t2i", "pretraining_tp": 1,
    "attention_bias": False,
}  # fmt: skip


def layer_shapes(prefix: str, first_norm: bool = True) -> dict[str, tuple[int, ...]]:
    shapes = {f"{prefix}self_attn.{name}_proj.weight": (1280, 1280) for name in "qkvo"}
    shapes |= {f"{prefix}mlp.{name}_proj.weight": (3584, 1280) for name in ("gate", "up")}
    shapes |= {
        f"{prefix}mlp.down_proj.weight": (1280, 3584),
        f"{prefix}post_attention_layernorm.weight": (1280,),
    }
    return shapes | ({f"{prefix}input_layernorm.weight": (1280,)} if first_norm else {})


@pytest.mark.parametrize(("block_size", "positions"), [(256, 376), (1024, 1144)])
def test_full_size_keys_shapes_and_number_of_parameters(block_size, positions) -> None:
    spec = LlamaGen().spec(XL | {"block_size": block_size})
    with torch.device("meta"):
        network = LlamaGenNetwork(spec, 2048)
    found = {
        key: tuple(value.shape) for key, value in public_state(network, llamagen_keys(spec)).items()
    }
    expected = {
        "model.embed_tokens.weight": (16384, 1280),
        "model.cls_embedding.cap_proj.fc1.weight": (1280, 2048),
        "model.cls_embedding.cap_proj.fc2.weight": (1280, 1280),
        "model.cls_embedding.uncond_embedding": (120, 2048),
        "model.norm.weight": (1280,),
        "lm_head.weight": (16384, 1280),
    }
    for layer in range(36):
        expected |= layer_shapes(f"model.layers.{layer}.")
    assert found == expected
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
    found = {
        key: tuple(value.shape) for key, value in public_state(head, eagle_keys(spec, True)).items()
    }
    assert found == {
        "embed_tokens.weight": (16384, 1280), "fc.weight": (1280, 2560), "fc.bias": (1280,),
        **layer_shapes("layers.0.", first_norm=False),
    }  # fmt: skip
    assert spec.image_rope == ImageRope(119, 16) and spec.norm_eps == 1e-6
