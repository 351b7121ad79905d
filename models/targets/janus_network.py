"""Janus-Pro's networks that draw: a Llama decoder, the image codes' embedding, and their head.

The vectors of the image codes pass two layers to the decoder's width. Both are frozen, so that is
done once, after reading: one embedding has the rows of the text's ids, then those of the codes.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import ImageVocab, TransformerSpec
from models.files.network import KeyMap, Network, Slot, block_keys
from models.linear import Linear
from models.targets.janus_config import JanusConfig, Keys, janus_config
from models.targets.llama_spec import llama_spec
from models.transformer import Transformer

_PROMPT = 1024  # tokens of a prompt that find room


class TwoLayers(nn.Module):
    """Linear, GELU, Linear, with biases."""

    def __init__(self, width: int, inner: int, out: int):
        super().__init__()
        self.inner, self.outer = Linear(width, inner), Linear(inner, out)

    def forward(self, x: Tensor) -> Tensor:  # (..., width) -> (..., out)
        return self.outer(F.gelu(self.inner(x)))


class JanusNetwork(nn.Module):
    """The networks in a checkpoint folder that draw. vocab: the ids of the image codes."""

    def __init__(self, spec: TransformerSpec, config: JanusConfig):
        super().__init__()
        self.vocab = ImageVocab(spec.vocab - config.codes, config.codes)
        self.transformer = Transformer(spec, config.codes)
        self.transformer.head = TwoLayers(spec.hidden, config.inner, config.codes)
        self.codes = nn.Embedding(config.codes, config.width)
        self.aligner = TwoLayers(config.width, spec.hidden, spec.hidden)

    @property
    def spec(self) -> TransformerSpec:
        return self.transformer.spec

    @torch.no_grad()
    def embed_codes(self) -> None:
        """Enter the image codes into the transformer's embedding, once the weights are read."""
        rows = self.transformer.embedding.weight[self.vocab.first_id :]
        rows.copy_(self.aligner(self.codes.weight))


def janus_spec(config: dict) -> TransformerSpec:
    """Return the transformer of a config.json; its ids are those of the text, then the codes.

    Raises:
        ValueError: naming an entry that is missing or not allowed.
    """
    parsed = janus_config(config)
    spec, image = llama_spec(parsed.decoder), parsed.side**2
    if spec.max_positions <= image:
        raise ValueError(
            f"config.json: max_position_embeddings is {spec.max_positions}; an image takes {image}"
        )
    # caches have room for all positions: the 16,384 of the public files are not for one image
    positions = min(spec.max_positions, image + _PROMPT)
    return replace(spec, vocab=spec.vocab + parsed.codes, max_positions=positions)


def janus_entries(config: dict) -> dict:
    """Return the decoder's entries as a drafter's config.json has them."""
    parsed = janus_config(config)
    return parsed.decoder | {"vocab_size": parsed.decoder["vocab_size"] + parsed.codes}


def janus_keys(spec: TransformerSpec, text: int, public: Keys) -> KeyMap:
    """Return public keys -> parameters of `JanusNetwork`; text: number of the text's ids."""
    keys = {
        f"{public.decoder}embed_tokens.weight": Slot(
            "transformer.embedding.weight", rows=slice(0, text)
        ),
        f"{public.decoder}norm.weight": Slot("transformer.norm.weight"),
        public.codes: Slot("codes.weight"),
    }
    for layer in range(spec.layers):
        keys |= block_keys(spec, public.decoder, "transformer.blocks.blocks.", layer)
    for theirs, ours in (
        (public.inner, "aligner.inner"),
        (public.outer, "aligner.outer"),
        (public.score, "transformer.head.inner"),
        (public.head, "transformer.head.outer"),
    ):
        keys |= {f"{theirs}{name}": Slot(f"{ours}.{name}") for name in ("weight", "bias")}
    return keys


def janus_network(config: dict) -> Network:
    """Return the networks of a config.json and their public keys; errors as `janus_spec`."""
    parsed, spec = janus_config(config), janus_spec(config)
    with torch.device("meta"):
        module = JanusNetwork(spec, parsed)
    ignored = (parsed.keys.codec, *parsed.keys.unused)
    return Network(module, janus_keys(spec, module.vocab.first_id, parsed.keys), ignored=ignored)
