"""Liquid's transformer in its public config.json and weight files: Gemma, with more ids.

Gemma's norms multiply by 1 + weight, its embeddings are scaled by sqrt(hidden), and its head is the
unscaled embedding. All three are entered into the weights once, after reading.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from models.base import ImageVocab, TransformerSpec
from models.codecs.vqgan_config import json_config
from models.files.network import KeyMap, Network, Slot, block_keys
from models.targets.llama_spec import filled, llama_spec
from models.transformer import RMSNorm, Transformer

KIND = "gemma"  # model_type in config.json
GEMMA_IDS = 256_000  # of Gemma alone
# transformers' GemmaConfig, with Liquid's ids; a config.json need not repeat them
_DEFAULTS = {
    "vocab_size": GEMMA_IDS + 8192,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
}
# Length of the authors' training sequences. Caches have room for all positions, and Gemma's 8,192
# would take four times the memory.
_POSITIONS = 2048
_TANH = "gelu_pytorch_tanh"
# "gelu" also means the tanh formula: Gemma's first config.json was wrong, and transformers says so
_FIXED = {
    "hidden_act": ("gelu", _TANH),
    "hidden_activation": (_TANH,),
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": (False,),
}


def liquid_entries(config: Mapping[str, object]) -> dict:
    """Return the entries of a config.json that a new drafter takes over, defaults filled in.

    A drafter is a layer of Llama, with SwiGLU and heads of hidden / heads channels.

    Raises:
        ValueError: the file is another family's, or has an entry that is not built here.
    """
    if (kind := config.get("model_type")) != KIND:
        raise ValueError(
            f"config.json: model_type is {kind!r}; allowed for --model liquid: {KIND!r}"
        )
    entries = filled(config, _DEFAULTS)
    for name, allowed in _FIXED.items():
        if (found := entries.pop(name, allowed[0])) not in allowed:
            words = " or ".join(map(repr, allowed))
            raise ValueError(f"config.json: {name} is {found!r}; allowed: {words}")
    del entries["head_dim"]
    return entries


def liquid_spec(config: dict) -> TransformerSpec:
    """Return the transformer of a config.json; ValueError names an entry that is not allowed."""
    spec, width = llama_spec(liquid_entries(config)), filled(config, _DEFAULTS)["head_dim"]
    if type(width) is not int or width < 2 or width % 2:
        raise ValueError(f"config.json: head_dim is {width!r}; allowed: even whole numbers from 2")
    positions = min(spec.max_positions, _POSITIONS)
    return replace(spec, gelu=True, head_width=width, max_positions=positions)


def liquid_keys(spec: TransformerSpec) -> KeyMap:
    """Return public keys -> parameters of `Transformer`, but for the head, which has none."""
    keys = {
        "model.embed_tokens.weight": Slot("embedding.weight"),
        "model.norm.weight": Slot("norm.weight"),
    }
    for layer in range(spec.layers):
        keys |= block_keys(spec, "model.", "blocks.blocks.", layer)
    return keys


def liquid_network(spec: TransformerSpec, codes: int) -> Network:
    """Return the transformer, with a head for so many image codes, and its public keys.

    .bin files repeat the embedding as `lm_head.weight`.
    """
    with torch.device("meta"):
        return Network(Transformer(spec, codes), liquid_keys(spec), ignored=("lm_head.weight",))


def published_network(config: dict) -> Network:
    """Return the transformer of a config.json, with a head for as many codes as `vq_config` says.

    The public config.json has no such entry; Chameleon's VQGAN has 8,192.
    """
    codes = json_config({"vq_config": {}} | config, "config.json").n_embed
    return liquid_network(liquid_spec(config), codes)


@torch.no_grad()
def enter_constants(transformer: Transformer, vocab: ImageVocab) -> None:
    """Fill the head and enter Gemma's constants into norms and embeddings, once weights are read.

    The embedding is rounded as Gemma rounds its product with the scale. In bf16, 1 + weight of a
    norm is rounded too, which Gemma keeps in fp32.
    """
    embedding = transformer.embedding.weight
    transformer.head.weight.copy_(embedding[vocab.first_id : vocab.first_id + vocab.size])
    embedding.mul_(torch.tensor(transformer.spec.hidden**0.5, dtype=embedding.dtype))
    for module in transformer.modules():
        if isinstance(module, RMSNorm):
            module.weight.add_(1.0)
