"""Janus-Pro's config.json in its two public layouts, and the keys of the weights in each.

Model type `janus` is that of transformers (deepseek-community/Janus-Pro-1B, -7B, safetensors),
`multi_modality` the authors' (deepseek-ai/Janus-Pro-1B, -7B and Janus-1.3B, .bin), in which models
trained from theirs come, too (T2I-R1, Janus-4o; .safetensors).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from models.files.entries import filled, refuse_entry, require_model, require_size, require_values
from models.files.recognition import MODEL_TYPES
from models.targets.llama import LLAMA

PATCH = 16  # pixels per image token along a side, of the codec VQ-16


@dataclass(frozen=True)
class Keys:
    """Public keys of one layout; modules end with a dot, tensors do not."""

    decoder: str  # the language model's layers, norm and embedding
    codes: str  # table of the image codes' vectors
    inner: str  # the two layers that bring such a vector to the decoder's width
    outer: str
    score: str  # the two layers that score the codes
    head: str
    codec: str  # the image codec
    unused: tuple[str, ...]  # networks that decoding does not need


TRANSFORMERS = Keys(
    decoder="model.language_model.",
    codes="model.generation_embeddings.weight",
    inner="model.generation_aligner.fc1.",
    outer="model.generation_aligner.hidden_layers.0.",
    score="model.generation_head.proj_out.",
    head="model.generation_head.vision_head.",
    codec="model.vqmodel.",
    unused=("model.vision_model.", "model.aligner.", "lm_head."),
)
AUTHORS = Keys(
    decoder="language_model.model.",
    codes="gen_embed.weight",
    inner="gen_aligner.layers.0.",
    outer="gen_aligner.layers.2.",
    score="gen_head.output_mlp_projector.",
    head="gen_head.vision_head.",
    codec="gen_vision_model.",
    unused=("vision_model.", "aligner.", "language_model.lm_head."),
)
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
    keys: Keys


def janus_config(config: Mapping[str, object]) -> JanusConfig:
    """Return what a config.json says; ValueError names an entry that is missing or not allowed."""
    kind = require_model(config, MODEL_TYPES["janus_pro"], "janus_pro")
    return (_transformers if kind == "janus" else _authors)(config)


def _transformers(config: Mapping[str, object]) -> JanusConfig:
    vq = filled(config.get("vq_config"), _VQ)
    vision = filled(config.get("vision_config"), _VISION)
    require_values(vq, {"num_hidden_layers": (2,)}, "vq_config.")
    side = _side("vision_config.", vision)
    require_values(vision, {"num_image_tokens": (side**2,)}, "vision_config.")
    return JanusConfig(
        filled(config.get("text_config"), LLAMA),
        *_sizes("vq_config.", vq, "num_embeddings", "embed_dim", "projection_dim"),
        side,
        TRANSFORMERS,
    )


def _authors(config: Mapping[str, object]) -> JanusConfig:
    vision, codec, aligner, head = (
        _params(config, name)
        for name in ("vision_config", "gen_vision_config", "gen_aligner_config", "gen_head_config")
    )
    require_values(config["gen_vision_config"], {"cls": ("VQ-16",)}, "gen_vision_config.")
    require_values({"depth": 1} | aligner, {"depth": (2,)}, "gen_aligner_config.params.")
    return JanusConfig(
        filled(config.get("language_config"), LLAMA),
        *_sizes("gen_vision_config.params.", codec, "image_token_size", "n_embed"),
        *_sizes("gen_head_config.params.", head, "image_token_embed"),
        _side("vision_config.params.", filled(vision, _VISION) | {"patch_size": PATCH}),
        AUTHORS,
    )


def _params(config: Mapping[str, object], name: str) -> dict:
    section = config.get(name)
    params = section.get("params") if isinstance(section, dict) else None
    if not isinstance(params, dict):
        raise ValueError(f"config.json lacks the entry '{name}.params'")
    return params


def _sizes(prefix: str, section: Mapping[str, object], *names: str) -> list[int]:
    return [require_size(f"{prefix}{name}", section.get(name)) for name in names]


def _side(prefix: str, vision: Mapping[str, object]) -> int:
    """Return the image tokens per side of an image."""
    pixels, patch = _sizes(prefix, vision, "image_size", "patch_size")
    if pixels % patch:
        refuse_entry(f"{prefix}image_size", pixels, f"multiples of {patch}")
    return pixels // patch
