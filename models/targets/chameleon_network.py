"""The transformer of the Chameleon family in its public config.json and weight files."""

import math
from dataclasses import replace

import torch

from models.base import ImageVocab, TransformerSpec
from models.files.names import BUNDLED_VQGAN
from models.files.network import KeyMap, Network, Slot, block_keys
from models.transformer import Transformer

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
_MOST_POSITIONS = 2**24  # weights do not tell it; caches of more fit into no memory
_FIXED = {"hidden_act": "silu", "rope_scaling": None, "attention_bias": False, "mlp_bias": False}


def chameleon_spec(config: dict) -> TransformerSpec:
    """Return the transformer that a config.json describes.

    Raises:
        ValueError: naming an entry that is missing or has a value that is not built here.
    """
    config = {name: value for name, value in config.items() if value is not None}
    rope = config.get("rope_parameters", {})
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise ValueError(f"config.json: rope_parameters is {rope!r}; allowed: rope_type 'default'")
    config.setdefault("rope_theta", rope.get("rope_theta") or 10000.0)
    _check_entries(config)
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    return TransformerSpec(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads or heads,
        max_positions=config["max_position_embeddings"],
        norm_eps=config.get("rms_norm_eps", 1e-5),
        rope_theta=config["rope_theta"],
        swin_norm=config.get("swin_norm", False),
    )


def _check_entries(config: dict) -> None:
    """Raise a ValueError naming the first entry of a config.json that is missing or not allowed."""
    for name, only in _FIXED.items():
        if config.get(name, only) != only:
            raise ValueError(f"config.json: {name} is {config[name]!r}; allowed: {only!r}")
    for names, allows, allowed in (
        ((*_SIZES, "num_key_value_heads"), _is_size, "whole numbers from 1"),
        (("max_position_embeddings",), _is_length, f"whole numbers up to {_MOST_POSITIONS}"),
        (("rms_norm_eps", "rope_theta"), _is_positive, "numbers above 0"),
        (("swin_norm",), lambda value: isinstance(value, bool), "true or false"),
    ):
        for name in names:
            if name in config and not allows(config[name]):
                raise ValueError(f"config.json: {name} is {config[name]!r}; allowed: {allowed}")
    if missing := [name for name in _SIZES if name not in config]:
        kind = config.get("model_type")
        raise ValueError(f"config.json lacks the entry {missing[0]!r}; its model_type is {kind!r}")
    heads = config["num_attention_heads"]
    for name, whole in (
        ("num_attention_heads", config["hidden_size"]),
        ("num_key_value_heads", heads),
    ):
        if whole % (divisor := config.get(name, heads)):
            raise ValueError(f"config.json: {name} is {divisor}; allowed: divisors of {whole}")


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_length(value: object) -> bool:
    return _is_size(value) and value <= _MOST_POSITIONS


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def chameleon_keys(spec: TransformerSpec, vocab: ImageVocab | None) -> KeyMap:
    """Return public keys -> parameters of `Transformer`.

    With a vocab, the head holds the rows of its image tokens only.
    """
    scored = slice(vocab.first_id, vocab.first_id + vocab.size) if vocab else slice(None)
    keys = {
        "model.embed_tokens.weight": Slot("embedding.weight"),
        "model.norm.weight": Slot("norm.weight"),
        "lm_head.weight": Slot("head.weight", source=scored, height=spec.vocab),
    }
    for layer in range(spec.layers):
        keys |= block_keys(spec, "model.", "blocks.blocks.", layer)
    return keys


def chameleon_network(spec: TransformerSpec, vocab: ImageVocab) -> Network:
    """Return the transformer, with a head for image codes only, and its public keys."""
    keys = chameleon_keys(spec, vocab)
    with torch.device("meta"):
        return Network(Transformer(spec, vocab.size), keys, ignored=(BUNDLED_VQGAN,))


def drafter_spec(config: dict, target: TransformerSpec) -> TransformerSpec:
    """Return a drafter's sizes in the Chameleon layout, with room for the target's sequences."""
    return replace(chameleon_spec(config), max_positions=target.max_positions)
