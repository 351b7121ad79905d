"""LlamaGen with random weights in the public layout."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration
from transformers.models.janus.configuration_janus import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from configs.targets import TARGETS
from drafters.eagle import EagleHead
from drafters.kinds import eagle_keys
from models.base import ImageRope
from models.files.network import public_state
from models.targets.llamagen import LlamaGen, LlamaGenNetwork, llamagen_keys, rotated_spec
from scripts.checkpoints import parts
from scripts.checkpoints.parts import make_kin, randomised, scaled, write_json
from scripts.checkpoints.published import Published, State

WORDS = ["a", "red", "blue", "cat", "dog", "on", "the", "mat", "and", "two", "three", ",", "."]
PARTS = TARGETS["llamagen"].parts


@dataclass(frozen=True)
class LlamaGenSizes:
    """Sizes: `side` x `side` of so many `codes`, after `slots` slots for the caption."""

    side: int = parts.SIDE
    codes: int = parts.CODES
    slots: int = 9
    width: int = 16


def write_llamagen(folder: Path, sizes: LlamaGenSizes = LlamaGenSizes()) -> Path:
    """Write target and drafter, and codec and text encoder next to them; returns the folder."""
    config = public_config(sizes)
    network = randomised(LlamaGenNetwork(LlamaGen().spec(config), sizes.width), 0)
    network.caption.empty.data.normal_(generator=torch.Generator().manual_seed(2))
    head_config = drafter_config(config)
    rope = ImageRope(sizes.slots - 1, sizes.side)
    head = randomised(EagleHead(replace(rotated_spec(head_config, rope), first_norm=False)), 1)
    make_kin(network.transformer, head)
    write_json(folder / "config.json", config)
    write_json(folder / "drafter" / "config.json", head_config)
    state = public_state(network, llamagen_keys(network.transformer.spec))
    save_file(state, folder / "model.safetensors")
    state = public_state(head, eagle_keys(head.spec, True))
    torch.save(state, folder / "drafter" / "pytorch_model.bin")
    write_parts(folder, sizes)
    return folder


def public_config(sizes: LlamaGenSizes) -> dict[str, Any]:
    """Return config.json of jadohu/LlamaGen-T2I with smaller numbers."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": sizes.codes,
        "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_act": "silu",
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": None, "attention_bias": False, "pretraining_tp": 1,
        "tie_word_embeddings": False, "block_size": sizes.side**2, "cls_token_num": sizes.slots,
        "caption_dim": sizes.width, "rope_base": 10000, "input_type": "t2i", "num_classes": 1000,
        "class_dropout_p": 0.1, "token_dropout_p": 0.1, "resid_dropout_p": 0.1,
        "ffn_dropout_p": 0.1,
    }  # fmt: skip


def drafter_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json of jadohu/llamagen_drafter; its code knows the grid by `input_type`."""
    fixed = ("rope_base", "rope_theta", "attention_bias", "num_classes")
    names = ("block_size", "cls_token_num", *fixed)
    kept = {name: value for name, value in config.items() if name not in names}
    stage = "t2i2" if config["block_size"] == 1024 else "t2i"
    own = {"num_hidden_layers": 1, "rms_norm_eps": 1e-6, "class_dropout_p": 0.0}
    return kept | own | {"input_type": stage}


def write_parts(folder: Path, sizes: LlamaGenSizes) -> State:
    """Write codec and text encoder next to the target's folder, narrow where that is possible."""
    write_vq(folder.parent / PARTS["vq_path"], small_janus(sizes.codes, sizes.side))
    write_t5(folder.parent / PARTS["text_encoder_path"], sizes.width)
    return {}


def small_janus(
    codes: int, side: int, multiplier: tuple[int, ...] = (1, 2), width: int = 4
) -> JanusVQVAE:
    """Return transformers' codec of LlamaGen's architecture with random weights."""
    config = JanusVQVAEConfig(
        embed_dim=width, num_embeddings=codes, latent_channels=8, base_channels=32,
        channel_multiplier=list(multiplier), num_res_blocks=2, num_patches=side,
    )  # fmt: skip
    torch.manual_seed(0)
    return scaled(JanusVQVAE(config))


def public_vq(janus: Mapping[str, Tensor]) -> State:
    """Return a codec's weights by LlamaGen's keys."""
    state = {}
    for key, value in janus.items():
        key = re.sub(r"\.(down|up)\.(\d+)\.", r".conv_blocks.\2.", key).replace(".block.", ".res.")
        for place, name in enumerate(("block_1", "attn_1", "block_2")):
            key = key.replace(f".mid.{name}.", f".mid.{place}.")
        state[key] = value
    return state


def write_vq(path: Path, janus: JanusVQVAE) -> None:
    """Write a codec as LlamaGen's authors do."""
    state = public_vq(janus.state_dict()) | {"quantize.codebook_used": torch.zeros(65536)}
    torch.save({"model": state}, path)


def write_t5(folder: Path, width: int) -> None:
    """Write encoder, decoder and a tokenizer of whole words."""
    ids = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )  # fmt: skip
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = T5Config(
        vocab_size=len(ids), d_model=width, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(folder)


def published(model: str, side: int) -> Published:
    """Return a stage of published size."""
    sizes = LlamaGenSizes(side, codes=16_384, slots=120, width=2048)
    config = public_config(sizes) | {
        "hidden_size": 1280, "intermediate_size": 3584, "num_hidden_layers": 36,
        "num_attention_heads": 20, "num_key_value_heads": 20,
    }  # fmt: skip
    return Published(model, config, partial(write_parts, sizes=sizes), drafter_config(config))


_SIDES = {"llamagen": 16, "llamagen2": 32}
SMALL = {
    model: partial(write_llamagen, sizes=LlamaGenSizes(side, slots=120))
    for model, side in _SIDES.items()
}
FULL = {model: published(model, side) for model, side in _SIDES.items()}
