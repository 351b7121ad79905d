"""EAGLE heads in their public layout: config.json and pytorch_model.bin or model.safetensors."""

from dataclasses import replace

import torch

from drafters.eagle import EagleHead
from models.base import TargetModel, TransformerSpec
from models.chameleon import chameleon_spec
from models.linear import order_weights
from models.weights import (
    KeyMap,
    Slot,
    block_keys,
    checkpoint_folder,
    load_strict,
    read_json,
    read_tensors,
    weight_files,
)


def eagle_keys(spec: TransformerSpec, bias: bool) -> KeyMap:
    """Public keys -> parameters of `EagleHead`."""
    keys = {"embed_tokens.weight": Slot("embedding.weight"), "fc.weight": Slot("fc.weight")}
    if bias:
        keys["fc.bias"] = Slot("fc.bias")
    for layer in range(spec.layers):
        keys |= block_keys(spec, "", "blocks.blocks.", layer)
    return keys


def load_eagle_head(path: str, target: TargetModel) -> EagleHead:
    """The drafter of a target, on its device and of its dtype; ValueError names what is missing or does not fit.

    A file without `embed_tokens.weight` is completed by the target's own embedding, which drafters are trained with.
    """
    folder = checkpoint_folder(path, "--drafter_path")
    config = read_json(folder / "config.json")
    spec, bias = chameleon_spec(config), config.get("bias", True)
    spec = replace(spec, max_positions=target.spec.max_positions)  # a size of tables, not of weights
    if (spec.hidden, spec.vocab) != (target.spec.hidden, target.spec.vocab):
        raise ValueError(
            f"{folder / 'config.json'}: hidden_size {spec.hidden} and vocab_size {spec.vocab} do not fit the target's "
            f"{target.spec.hidden} and {target.spec.vocab}"
        )
    with torch.device("meta"):
        head = EagleHead(spec, bias).to(target.dtype)
    head = head.to_empty(device=target.device).requires_grad_(False).eval()
    absent = load_strict(
        head, read_tensors(weight_files(folder)), eagle_keys(spec, bias), optional=("embed_tokens.weight",)
    )
    if absent:
        head.embedding.weight = target.transformer.embedding.weight
    order_weights(head)
    return head
