"""Janus-Pro's config.json in its two public layouts, and the keys of the weights in each.

Model type `janus` is that of transformers (deepseek-community/Janus-Pro-1B, -7B, safetensors),
`multi_modality` the authors' (deepseek-ai/Janus-Pro-1B, -7B, .bin).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from models.targets.llama_spec import LLAMA, filled

_PATCH = 16  # pixels per image token along a side, of the codec VQ-16


@dataclass(frozen=True)
class Keys:
    """Public keys of one layout; modules end with a dot, tensors do not.

    decoder: of the language model's layers, norm and embedding. codes: table of the image codes'
    vectors. inner, outer: the two layers that bring such a vector to the decoder's width. score,
    head: the two layers that score the codes. codec: of the image codec. unused: of networks that
    decoding does not need.
    """

    decoder: str
    codes: str
    inner: str
    outer: str
    score: str
    head: str
    codec: str
    unused: tuple[str, ...]


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


@dataclass(frozen=True)
class JanusConfig:
    """What a config.json says of the part that draws.

    decoder: entries of the language model, defaults filled in. codes, width: of the image codes and
    of their vectors. inner: width between the two layers that score codes. side: image tokens per
    row and column.
    """

    decoder: dict
    codes: int
    width: int
    inner: int
    side: int
    keys: Keys


def janus_config(config: Mapping[str, object]) -> JanusConfig:
    """Return what a config.json says; ValueError names an entry that is missing or not allowed."""
    readers = {"janus": _transformers, "multi_modality": _authors}
    kind = config.get("model_type")
    if kind not in readers:
        raise ValueError(
            f"config.json: model_type is {kind!r}; allowed for --model janus_pro: "
            f"{' or '.join(map(repr, readers))}"
        )
    return readers[kind](config)


def _transformers(config: Mapping[str, object]) -> JanusConfig:
    vq = filled(config.get("vq_config"), _VQ)
    vision = filled(config.get("vision_config"), {"image_size": 384, "patch_size": _PATCH})
    _allow("vq_config.num_hidden_layers", vq["num_hidden_layers"], 2)
    side = _side("vision_config", vision["image_size"], vision["patch_size"])
    _allow("vision_config.num_image_tokens", vision.get("num_image_tokens", side**2), side**2)
    return JanusConfig(
        filled(config.get("text_config"), LLAMA),
        *_sizes("vq_config", vq, "num_embeddings", "embed_dim", "projection_dim"),
        side,
        TRANSFORMERS,
    )


def _authors(config: Mapping[str, object]) -> JanusConfig:
    vision, codec, aligner, head = (
        _params(config, name)
        for name in ("vision_config", "gen_vision_config", "gen_aligner_config", "gen_head_config")
    )
    _allow("gen_vision_config.cls", config["gen_vision_config"].get("cls", "VQ-16"), "VQ-16")
    _allow("gen_aligner_config.params.depth", aligner.get("depth", 1), 2)
    return JanusConfig(
        filled(config.get("language_config"), LLAMA),
        *_sizes("gen_vision_config.params", codec, "image_token_size", "n_embed"),
        *_sizes("gen_head_config.params", head, "image_token_embed"),
        _side("vision_config.params", vision.get("image_size", 384), _PATCH),
        AUTHORS,
    )


def _params(config: Mapping[str, object], name: str) -> dict:
    section = config.get(name)
    params = section.get("params") if isinstance(section, dict) else None
    if not isinstance(params, dict):
        raise ValueError(f"config.json lacks the entry '{name}.params'")
    return params


def _sizes(part: str, given: Mapping[str, object], *names: str) -> list[int]:
    return [_size(f"{part}.{name}", given.get(name)) for name in names]


def _size(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"config.json: {name} is {value!r}; allowed: whole numbers from 1")
    return value


def _side(part: str, pixels: object, patch: object) -> int:
    """Return the image tokens per side of an image of so many pixels."""
    pixels, patch = _size(f"{part}.image_size", pixels), _size(f"{part}.patch_size", patch)
    if pixels % patch:
        raise ValueError(
            f"config.json: {part}.image_size is {pixels}; allowed: multiples of {patch}"
        )
    return pixels // patch


def _allow(name: str, found: object, only: object) -> None:
    if found != only:
        raise ValueError(f"config.json: {name} is {found!r}; allowed: {only!r}")
