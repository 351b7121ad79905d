"""LlamaGen's transformer and caption projection in their public config.json and weight files."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import ImageRope, TransformerSpec
from models.files.network import KeyMap, Network, Slot
from models.linear import Linear
from models.targets.chameleon_network import chameleon_keys, chameleon_spec
from models.transformer import Transformer

_STAGES = {16: "t2i", 32: "t2i2"}  # codes per side -> `input_type` of the public drafters


class Caption(nn.Module):
    """Project T5's features to the transformer's width; `empty` holds the rows of no caption."""

    def __init__(self, width: int, hidden: int, slots: int):
        super().__init__()
        self.fc1 = Linear(width, hidden, bias=False)
        self.fc2 = Linear(hidden, hidden, bias=False)
        self.empty = nn.Parameter(torch.zeros(slots, width))

    def forward(self, features: Tensor) -> Tensor:
        """(rows, n, width) -> (rows, n, hidden)."""
        return self.fc2(F.gelu(self.fc1(features), approximate="tanh"))


class LlamaGenNetwork(nn.Module):
    """Transformer and caption projection: the networks in a checkpoint folder."""

    def __init__(self, spec: TransformerSpec, width: int):
        super().__init__()
        self.transformer = Transformer(spec, spec.vocab)
        self.caption = Caption(width, spec.hidden, spec.image_rope.condition)

    @property
    def spec(self) -> TransformerSpec:
        return self.transformer.spec


def decoder_spec(config: dict, image: ImageRope) -> TransformerSpec:
    """Return the sizes in a config.json, of a target or a drafter, with LlamaGen's rotation.

    Raises:
        ValueError: naming an entry that is missing or not allowed.
    """
    spec = chameleon_spec({"max_position_embeddings": image.condition + image.side**2} | config)
    if spec.head_dim % 4:
        raise ValueError(
            f"config.json: {spec.hidden} / {spec.heads} channels per head; allowed: a multiple of 4"
        )
    theta = config.get("rope_base", 10000.0)
    return replace(spec, qk_norm=False, swin_norm=False, rope_theta=theta, image_rope=image)


def llamagen_spec(config: dict, side: int | None = None) -> TransformerSpec:
    """Return the transformer of a target's config.json.

    Args:
        config: the parsed file.
        side: codes per row and column that it must have; any if None.

    Raises:
        ValueError: naming an entry that is missing or not allowed.
    """
    for name, only in (("input_type", "t2i"), ("pretraining_tp", 1)):
        if config.get(name, only) != only:
            raise ValueError(f"config.json: {name} is {config[name]!r}; allowed: {only!r}")
    for name in ("block_size", "cls_token_num", "caption_dim"):
        if not isinstance(config.get(name), int) or config[name] < 1:
            raise ValueError(
                f"config.json: {name} is {config.get(name)!r}; allowed: a whole number from 1"
            )
    stated = math.isqrt(config["block_size"])
    if stated**2 != config["block_size"]:
        raise ValueError(f"config.json: block_size is {config['block_size']}; allowed: a square")
    if side not in (None, stated):
        raise ValueError(
            f"config.json: block_size is {config['block_size']}, expected {side**2}: "
            "an image of --model llamagen has 256 tokens, of --model llamagen2 1024"
        )
    spec = decoder_spec(config, ImageRope(config["cls_token_num"], stated))
    return replace(spec, max_positions=config["cls_token_num"] + config["block_size"])


def llamagen_keys(spec: TransformerSpec) -> KeyMap:
    """Public keys -> parameters of `LlamaGenNetwork`."""
    slots = chameleon_keys(spec, None)
    keys = {
        key: replace(slot, parameter=f"transformer.{slot.parameter}") for key, slot in slots.items()
    }
    for name in ("fc1", "fc2"):
        keys[f"model.cls_embedding.cap_proj.{name}.weight"] = Slot(f"caption.{name}.weight")
    keys["model.cls_embedding.uncond_embedding"] = Slot("caption.empty")
    return keys


def llamagen_network(config: dict, side: int | None = None) -> Network:
    """Return the network of a target's config.json and its public keys.

    Arguments and errors as `llamagen_spec`.
    """
    spec = llamagen_spec(config, side)
    with torch.device("meta"):
        return Network(LlamaGenNetwork(spec, config["caption_dim"]), llamagen_keys(spec))


def drafter_spec(config: dict, target: TransformerSpec) -> TransformerSpec:
    """Return the sizes of LlamaGen's EAGLE heads.

    They read token i + 1 at slot i, so their condition is one slot shorter.

    Raises:
        ValueError: for a head of the other stage.
    """
    image, stage = target.image_rope, config.get("input_type")
    wanted = _STAGES.get(image.side, stage)
    if stage not in (None, wanted):
        raise ValueError(
            f"config.json of the drafter: input_type is {stage!r}; the target needs {wanted!r}"
        )
    spec = decoder_spec(config, replace(image, condition=image.condition - 1))
    return replace(spec, max_positions=target.max_positions, first_norm=False, hides_padding=False)
