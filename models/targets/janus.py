"""Janus-Pro (arXiv 2501.17811), models trained from it, and its forerunner Janus-1.3B
(2410.13848): a plain Llama whose image codes have an embedding of their own.

A prompt is `<begin of sentence><|User|>: text`, a blank line, `<|Assistant|>:<begin_of_image>`. The
unconditional row is as long: all but its first and last token are padding, which is attended to. An
image is 24 x 24 tokens without row ends.

The vectors of the image codes pass two layers to the decoder's width. Both are frozen, so that is
done once, after reading: one embedding has the rows of the text's ids, then those of the codes.

config.json has two layouts. Model type `janus` is that of transformers (deepseek-community/
Janus-Pro-1B, -7B, safetensors), `multi_modality` the authors' (deepseek-ai/Janus-Pro-1B, -7B and
Janus-1.3B, .bin), in which models trained from theirs also come (T2I-R1, Janus-4o; .safetensors).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from configs.fields import refusing
from models.base import ImageVocab, TargetOptions, TransformerSpec
from models.codecs.vqgan_files import VqganFiles, janus_vq
from models.cpu.linear import Linear
from models.files.entries import filled, refuse_entry, require_size, require_values
from models.files.network import KeyMap, Network, Slot
from models.files.recognition import require_model
from models.files.tokenizer_file import row_ids
from models.targets.family import Family
from models.targets.llama import HEAD, LLAMA, decoder_keys, llama_spec
from models.targets.prompts import Prompts
from models.transformer import Embedding, Transformer
from support.json_files import read_object

BOS, PAD, BEGIN_IMAGE = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"
ROLES = "User", "Assistant"
# Caches have room for all positions; the 16,384 of the public files are not for one image.
_PROMPT = 1024  # tokens of a prompt that find room
PATCH = 16  # pixels per image token along a side, of the codec VQ-16


_DECODER, _CODEC, _AUTHORS_CODEC = "model.language_model.", "model.vqmodel.", "gen_vision_model."
# the authors' keys -> transformers'
_AUTHORS = (
    (r"^language_model\.model\.", _DECODER),
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^gen_embed\.", "model.generation_embeddings."),
    (r"^gen_aligner\.layers\.0\.", "model.generation_aligner.fc1."),
    (r"^gen_aligner\.layers\.2\.", "model.generation_aligner.hidden_layers.0."),
    (r"^gen_head\.output_mlp_projector\.", "model.generation_head.proj_out."),
    (r"^gen_head\.", "model.generation_head."),
)
# networks that decoding does not need, in both layouts; the image codec is read by itself
_UNUSED = ("model.vision_model.", "vision_model.", "model.aligner.", "aligner.", "lm_head.")
_VQ = {"num_embeddings": 16384, "embed_dim": 8, "projection_dim": 2048, "num_hidden_layers": 2}
_VISION = {"image_size": 384, "patch_size": PATCH}


@dataclass(frozen=True)
class JanusConfig:
    """What a config.json says of the part that generates images."""

    decoder: dict  # entries of the language model, defaults filled in
    codes: int  # number of image codes
    width: int  # of their vectors
    inner: int  # width between the two layers that score codes
    side: int  # image tokens per row and column
    codec: str  # prefix of the image codec's keys


def janus_config(config: Mapping[str, Any]) -> JanusConfig:
    """Read a config.json of transformers' or of the authors' layout."""
    kind = require_model(config, "janus_pro")
    return (_transformers if kind == "janus" else _authors)(config)


def _transformers(config: Mapping[str, Any]) -> JanusConfig:
    vq = filled(config.get("vq_config"), _VQ)
    vision = filled(config.get("vision_config"), _VISION)
    require_values(vq, {"num_hidden_layers": (2,)}, "vq_config.")
    side = _side("vision_config.", vision)
    require_values(vision, {"num_image_tokens": (side**2,)}, "vision_config.")
    codes, width, inner = _sizes("vq_config.", vq, "num_embeddings", "embed_dim", "projection_dim")
    decoder = filled(config.get("text_config"), LLAMA)
    return JanusConfig(decoder, codes, width, inner, side, _CODEC)


def _authors(config: Mapping[str, Any]) -> JanusConfig:
    vision, codec, aligner, head = (
        _params(config, name)
        for name in ("vision_config", "gen_vision_config", "gen_aligner_config", "gen_head_config")
    )
    require_values(config["gen_vision_config"], {"cls": ("VQ-16",)}, "gen_vision_config.")
    # 1 is what the authors' code takes for an absent entry.
    require_values({"depth": 1} | aligner, {"depth": (2,)}, "gen_aligner_config.params.")
    codes, width = _sizes("gen_vision_config.params.", codec, "image_token_size", "n_embed")
    (inner,) = _sizes("gen_head_config.params.", head, "image_token_embed")
    side = _side("vision_config.params.", filled(vision, _VISION) | {"patch_size": PATCH})
    decoder = filled(config.get("language_config"), LLAMA)
    return JanusConfig(decoder, codes, width, inner, side, _AUTHORS_CODEC)


def _params(config: Mapping[str, Any], name: str) -> dict:
    section = config.get(name)
    params = section.get("params") if isinstance(section, dict) else None
    if not isinstance(params, dict):
        raise ValueError(f"config.json lacks the entry '{name}.params'")
    return params


def _sizes(prefix: str, section: Mapping[str, Any], *names: str) -> list[int]:
    return [require_size(f"{prefix}{name}", section.get(name)) for name in names]


def _side(prefix: str, vision: Mapping[str, Any]) -> int:
    pixels, patch = _sizes(prefix, vision, "image_size", "patch_size")
    if pixels % patch:
        refuse_entry(f"{prefix}image_size", pixels, f"multiples of {patch}")
    return pixels // patch


class JanusPrompts(Prompts):
    """Prompts of Janus-Pro: a user's turn, then the begin of the image."""

    pad = PAD

    def image_vocab(self, spec: TransformerSpec) -> ImageVocab:
        first = spec.vocab - self.codes.count
        highest = max(self.words.ids.values())
        if highest >= first:
            path = self.words.path
            raise ValueError(f"{path} names ids up to {highest}; config.json has {first} ids")
        return ImageVocab(first, self.codes.count)

    def ids(self, text: str) -> list[int]:
        words = self.words
        # Janus-Pro's roles are tokens; Janus-1.3B, whose file lacks them, was trained with words
        user, assistant = (words.ids.get(f"<|{name}|>", name) for name in ROLES)
        request = user, f": {text.strip()}\n\n", assistant, ":"
        return row_ids(words.tokenizer, words[BOS], *request, words[BEGIN_IMAGE])

    def empty(self, row: list[int]) -> list[int]:
        return [row[0], *[self.words[PAD]] * (len(row) - 2), row[-1]]


def two_layers(width: int, inner: int, out: int) -> nn.Sequential:
    """Return two linear layers with a GELU between them."""
    return nn.Sequential(Linear(width, inner), nn.GELU(), Linear(inner, out))


class JanusNetwork(nn.Module):
    """The networks in a checkpoint folder that generate images."""

    def __init__(self, spec: TransformerSpec, config: JanusConfig):
        super().__init__()
        self.transformer = Transformer(spec, config.codes)
        self.transformer.head = two_layers(spec.hidden, config.inner, config.codes)
        self.codes = Embedding(config.codes, config.width)
        self.aligner = two_layers(config.width, spec.hidden, spec.hidden)

    @property
    def spec(self) -> TransformerSpec:
        return self.transformer.spec


def janus_keys(spec: TransformerSpec, text: int) -> KeyMap:
    """Return public keys -> parameters of `JanusNetwork`; text: number of the text's ids."""
    keys = decoder_keys(spec, None, _DECODER, "transformer.")
    del keys[HEAD]  # of the text
    keys[f"{_DECODER}embed_tokens.weight"] = Slot("transformer.embedding.weight", slice(0, text))
    keys["model.generation_embeddings.weight"] = Slot("codes.weight")
    for theirs, ours in (
        ("aligner.fc1", "aligner.0"),
        ("aligner.hidden_layers.0", "aligner.2"),
        ("head.proj_out", "transformer.head.0"),
        ("head.vision_head", "transformer.head.2"),
    ):
        for name in ("weight", "bias"):
            keys[f"model.generation_{theirs}.{name}"] = Slot(f"{ours}.{name}")
    return keys


class JanusPro(Family):
    """Janus-Pro, in transformers' or its authors' layout."""

    name = "janus_pro"
    prompts = JanusPrompts
    image_part = "image codec"
    frame = (BOS, PAD, BEGIN_IMAGE)

    def spec(self, config: dict) -> TransformerSpec:
        """Return the transformer's sizes; its ids are those of the text, then the codes."""
        parsed = janus_config(config)
        spec = llama_spec(parsed.decoder)
        positions = min(spec.max_positions, parsed.side**2 + _PROMPT)
        return replace(spec, vocab=spec.vocab + parsed.codes, max_positions=positions)

    def entries(self, config: dict) -> dict:
        return janus_config(config).decoder | {"vocab_size": self.spec(config).vocab}

    def network(self, config: dict, vocab: ImageVocab | None = None) -> Network:
        parsed, spec = janus_config(config), self.spec(config)
        with torch.device("meta"):
            module = JanusNetwork(spec, parsed)
        keys = janus_keys(spec, spec.vocab - parsed.codes)
        return Network(module, keys, ignored=(parsed.codec, *_UNUSED), renames=_AUTHORS)

    @torch.no_grad()
    def finish(self, network: nn.Module, prompts: Prompts) -> Transformer:
        """Enter the image codes into the embedding, after the text's ids."""
        assert isinstance(network, JanusNetwork)
        vectors = network.aligner(network.codes.weight)
        network.transformer.embedding.weight[-len(vectors) :] = vectors
        return network.transformer

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        config = read_object(folder / "config.json")
        with refusing(str(folder)):
            parsed = janus_config(config)
        files = janus_vq(folder, parsed.codec, parsed.side)
        if files.config.n_embed != parsed.codes:
            raise ValueError(
                f"{folder}: the codec has {files.config.n_embed} codes, config.json {parsed.codes}"
            )
        return files
