"""Emu3's transformer in its public config.json and weight files: Llama with grouped queries.

Keys have three layouts: transformers' of today (`model.text_model.*`), the one of the public files
(`text_model.model.*`, BAAI/Emu3-Gen-hf), and the authors' (`model.*`, BAAI/Emu3-Gen, whose
config.json is flat).
"""

import torch

from models.base import ImageVocab, TransformerSpec
from models.files.network import KeyMap, Network, Slot, block_keys
from models.targets.llama_spec import filled, llama_spec
from models.transformer import Transformer

_DECODER = "model.text_model."
# prefixes of the other layouts -> today's
_OLDER = (
    ("text_model.lm_head.", "lm_head."),
    ("text_model.model.", _DECODER),
    ("vqmodel.", "model.vqmodel."),
    *(
        (f"model.{module}.", f"{_DECODER}{module}.")
        for module in ("embed_tokens", "layers", "norm")
    ),
)
# transformers' Emu3TextConfig; a config.json need not repeat them
_DEFAULTS = {
    "vocab_size": 184622,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 9216,
    "rms_norm_eps": 1e-5,
}
_THETA = 1e6
_KINDS = ("emu3", "Emu3")  # model_type of transformers' files and of the authors'


def emu3_entries(config: dict) -> dict:
    """Return the transformer's entries of a config.json, defaults filled in.

    Raises:
        ValueError: the file is another family's.
    """
    kind = config.get("model_type")
    if kind not in _KINDS:
        raise ValueError(
            f"config.json: model_type is {kind!r}; allowed for --model emu3: "
            f"{' or '.join(map(repr, _KINDS))}"
        )
    entries = filled(config.get("text_config") if kind == "emu3" else config, _DEFAULTS)
    rope = entries.get("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    return {"rope_theta": theta or _THETA} | entries


def emu3_spec(config: dict) -> TransformerSpec:
    """Return the transformer of a config.json; ValueError names an entry that is not allowed."""
    return llama_spec(emu3_entries(config))


def emu3_keys(spec: TransformerSpec, vocab: ImageVocab | None) -> KeyMap:
    """Return public keys -> parameters of `Transformer`.

    With a vocab, the head holds the rows of its image tokens only.
    """
    scored = slice(vocab.first_id, vocab.first_id + vocab.size) if vocab else slice(None)
    keys = {
        f"{_DECODER}embed_tokens.weight": Slot("embedding.weight"),
        f"{_DECODER}norm.weight": Slot("norm.weight"),
        "lm_head.weight": Slot("head.weight", source=scored, height=spec.vocab),
    }
    for layer in range(spec.layers):
        keys |= block_keys(spec, _DECODER, "blocks.blocks.", layer)
    return keys


def emu3_network(spec: TransformerSpec, vocab: ImageVocab) -> Network:
    """Return the transformer, with a head for image codes only, and its public keys."""
    with torch.device("meta"):
        module = Transformer(spec, vocab.size)
    return Network(module, emu3_keys(spec, vocab), ignored=("model.vqmodel.",), older=_OLDER)
