"""EAGLE heads in their public layout: config.json and pytorch_model.bin or model.safetensors."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from drafters.eagle import EagleHead
from models.base import TargetModel, TransformerSpec
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


def with_embedding(tensors: Iterable[tuple[str, Tensor]], target: TargetModel) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a drafter, and the target's embedding if they come without one: training freezes it."""
    found = False
    for key, tensor in tensors:
        found = found or key == "embed_tokens.weight"
        yield key, tensor
    if not found:
        yield "embed_tokens.weight", target.embedding()


def load_eagle_head(path: str, target: TargetModel) -> EagleHead:
    """The drafter of a target, on its device and of its dtype; ValueError names what is missing or does not fit."""
    folder = checkpoint_folder(path, "--drafter_path")
    config = read_json(folder / "config.json")
    spec, bias = target.drafter_spec(config), config.get("bias", True)
    if (spec.hidden, spec.vocab) != (target.spec.hidden, target.spec.vocab):
        raise ValueError(
            f"{folder / 'config.json'}: hidden_size {spec.hidden} and vocab_size {spec.vocab} do not fit the target's "
            f"{target.spec.hidden} and {target.spec.vocab}"
        )
    with torch.device("meta"):
        head = EagleHead(spec, bias).to(target.dtype)
    head = head.to_empty(device=target.device).requires_grad_(False).eval()
    load_strict(head, with_embedding(read_tensors(weight_files(folder)), target), eagle_keys(spec, bias))
    order_weights(head)
    return head
