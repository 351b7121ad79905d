"""Plain Llama decoders (Janus-Pro, Emu3): sizes from a config.json that may omit the defaults."""

from collections.abc import Mapping
from dataclasses import replace

from models.base import TransformerSpec
from models.targets.chameleon_network import chameleon_spec

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


def llama_spec(entries: Mapping[str, object], vocab: int | None = None) -> TransformerSpec:
    """Return the sizes of a Llama decoder, without norms on queries and keys.

    Args:
        entries: of config.json, with the family's defaults filled in.
        vocab: ids of the embedding, where they are not the entry's.

    Raises:
        ValueError: naming an entry that is missing or not allowed.
    """
    scaling = entries.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == "default":
        entries = {name: value for name, value in entries.items() if name != "rope_scaling"}
    spec = replace(chameleon_spec(dict(entries)), qk_norm=False, swin_norm=False)
    if entries.get("head_dim") not in (None, spec.head_dim):
        raise ValueError(
            f"config.json: head_dim is {entries['head_dim']!r}; allowed: {spec.head_dim}, "
            "hidden_size / num_attention_heads"
        )
    return spec if vocab is None else replace(spec, vocab=vocab)


def llama_drafter_spec(config: dict, target: TransformerSpec) -> TransformerSpec:
    """Return the sizes of an EAGLE head for a Llama target, with room for its sequences.

    As in the published heads, layer 0 has no norm before its attention.
    """
    return replace(llama_spec(config), max_positions=target.max_positions, first_norm=False)


def filled(nested: object, defaults: Mapping[str, object]) -> dict:
    """Return a part of config.json with its defaults; an absent part is all defaults."""
    given = nested if isinstance(nested, dict) else {}
    return {**defaults, **{name: value for name, value in given.items() if value is not None}}
