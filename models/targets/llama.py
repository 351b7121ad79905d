"""Decoders in the Hugging Face layout of Llama and Chameleon: sizes and public keys."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.base import ImageVocab, TransformerSpec
from models.files.entries import refuse_entry, require_size, require_values
from models.files.network import KeyMap, Slot, block_keys

HEAD = "lm_head.weight"
# transformers' LlamaConfig; a config.json need not repeat them
LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
_SIZES = tuple(name for name in LLAMA if name != "rms_norm_eps")
_MOST_POSITIONS = 2**24  # weights do not tell it; caches of more fit into no memory
_BUILT = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "swin_norm": (False, True),
}


def decoder_spec(config: Mapping[str, Any]) -> TransformerSpec:
    """Return the sizes of a decoder with norms on queries and keys, as Chameleon has them."""
    config = {name: value for name, value in config.items() if value is not None}
    config = {"rope_theta": rope_parameters(config).get("rope_theta") or 10000.0, **config}
    _check_entries(config)
    heads = config["num_attention_heads"]
    return TransformerSpec(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads", heads),
        max_positions=config["max_position_embeddings"],
        norm_eps=config.get("rms_norm_eps", 1e-5),
        rope_theta=config["rope_theta"],
        swin_norm=config.get("swin_norm", False),
    )


def rope_parameters(config: Mapping[str, Any]) -> dict:
    """Return this section of a config.json; ValueError if it scales positions."""
    rope = config.get("rope_parameters")
    rope = {} if rope is None else rope
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        refuse_entry("rope_parameters", rope, "rope_type 'default'")
    return rope


def _check_entries(config: Mapping[str, Any]) -> None:
    """Refuse the first entry of a config.json that is missing or not allowed."""
    require_values(config, _BUILT)
    for name in (*_SIZES, "num_key_value_heads"):
        require_size(name, config.get(name, 1))
    if (positions := config.get("max_position_embeddings", 1)) > _MOST_POSITIONS:
        refuse_entry("max_position_embeddings", positions, f"whole numbers up to {_MOST_POSITIONS}")
    for name in ("rms_norm_eps", "rope_theta", "rope_base"):
        value = config.get(name, 1)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            refuse_entry(name, value, "numbers above 0")
    if missing := [name for name in _SIZES if name not in config]:
        kind = config.get("model_type")
        raise ValueError(f"config.json lacks the entry {missing[0]!r}; its model_type is {kind!r}")
    heads = config["num_attention_heads"]
    divided = {"num_attention_heads": config["hidden_size"], "num_key_value_heads": heads}
    for name, whole in divided.items():
        if whole % (divisor := config.get(name, heads)):
            refuse_entry(name, divisor, f"divisors of {whole}")


def llama_spec(
    entries: Mapping[str, Any], width: object = None, positions: int = _MOST_POSITIONS
) -> TransformerSpec:
    """Return the sizes of a Llama decoder, without norms on queries and keys.

    entries: with the family's defaults. width: `head_dim`, of families whose heads need not be
    hidden / heads channels wide. positions: most that caches get room for.
    """
    scaling = entries.get("rope_scaling")
    # files of older transformers name the kind of scaling even where nothing is scaled
    if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == "default":
        entries = {name: value for name, value in entries.items() if name != "rope_scaling"}
    spec = decoder_spec(entries)
    if width is None and entries.get("head_dim") not in (None, spec.head_dim):
        allowed = f"{spec.head_dim}, hidden_size / num_attention_heads"
        refuse_entry("head_dim", entries["head_dim"], allowed)
    if width is not None and (type(width) is not int or width < 2 or width % 2):
        refuse_entry("head_dim", width, "even whole numbers from 2")
    positions = min(spec.max_positions, positions)
    return replace(spec, qk_norm=False, swin_norm=False, max_positions=positions, head_width=width)


def decoder_keys(
    spec: TransformerSpec, vocab: ImageVocab | None = None, public: str = "model.", ours: str = ""
) -> KeyMap:
    """Return public keys -> parameters of `Transformer`, after the prefixes `public` and `ours`.

    vocab: ids of the image codes, whose rows alone the head holds; None: the rows of all ids.
    """
    # only image codes are ever scored: a head for all ids would cost memory and time
    scored = slice(vocab.first_id, vocab.first_id + vocab.size) if vocab else slice(None)
    keys = {
        f"{public}embed_tokens.weight": Slot(f"{ours}embedding.weight"),
        f"{public}norm.weight": Slot(f"{ours}norm.weight"),
        HEAD: Slot(f"{ours}head.weight", source=scored, height=spec.vocab),
    }
    for layer in range(spec.layers):
        keys |= block_keys(spec, public, f"{ours}blocks.blocks.", layer)
    return keys
