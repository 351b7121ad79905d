"""EAGLE heads in their public layout: config.json and pytorch_model.bin or model.safetensors."""

from collections.abc import Callable
from pathlib import Path

import torch

from drafters.eagle import EagleHead
from models.base import TargetModel, TransformerSpec
from models.files.folders import checkpoint_folder
from models.files.weights import (
    KeyMap,
    Network,
    Slot,
    block_keys,
    folder_shapes,
    read_json,
    refuse_faults,
)
from models.linear import pack_weights
from models.targets.family import Family


def eagle_keys(spec: TransformerSpec, bias: bool) -> KeyMap:
    """Public keys -> parameters of `EagleHead`."""
    keys = {"embed_tokens.weight": Slot("embedding.weight"), "fc.weight": Slot("fc.weight")}
    if bias:
        keys["fc.bias"] = Slot("fc.bias")
    for layer in range(spec.layers):
        keys |= block_keys(spec, "", "blocks.blocks.", layer)
    return keys


def load_eagle_head(path: str, target: TargetModel, dtype: torch.dtype | None = None) -> EagleHead:
    """The drafter of a target, on its device and of its dtype or another one; ValueError names what is missing or does
    not fit.

    A file without `embed_tokens.weight` is completed by the target's own embedding, which drafters are trained with.
    """
    folder, network = _find_head(path, target.drafter_spec, target.spec)
    if network.fill(folder, dtype or target.dtype, target.device):
        network.module.embedding.weight = target.embedding()
    pack_weights(network.module)
    return network.module


def check_eagle_head(path: str, family: Family, target: TransformerSpec) -> None:
    """ValueError unless the drafter's files fit a target of this family and these sizes; reads no weights."""
    folder, network = _find_head(path, lambda config: family.drafter(config, target), target)
    refuse_faults(network.faults(folder_shapes(folder)))


def _find_head(
    path: str, sizes: Callable[[dict], TransformerSpec], target: TransformerSpec
) -> tuple[Path, Network]:
    """The folder of --drafter_path and its network, of the sizes that config.json gives; nothing is loaded."""
    folder = checkpoint_folder(path, "--drafter_path")
    config = read_json(folder / "config.json")
    return folder, eagle_network(config, sizes(config), target, str(folder / "config.json"))


def eagle_network(
    config: dict, spec: TransformerSpec, target: TransformerSpec, name: str
) -> Network:
    """The drafter that a config.json describes, and its public keys.

    Args:
        config: the parsed config.json.
        spec: the drafter's sizes in it.
        target: of the model that it drafts for.
        name: of the file, for errors.

    Raises:
        ValueError: if the drafter is another target's.
    """
    bias = config.get("bias", True)
    if (spec.hidden, spec.vocab) != (target.hidden, target.vocab):
        raise ValueError(
            f"{name}: hidden_size {spec.hidden} and vocab_size {spec.vocab} do not fit the target's "
            f"{target.hidden} and {target.vocab}"
        )
    with torch.device("meta"):
        return Network(
            EagleHead(spec, bias), eagle_keys(spec, bias), optional=("embed_tokens.weight",)
        )
