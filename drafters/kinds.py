"""The kinds of drafters with weights: of each its network and its public keys.

The entry `drafter` of a drafter's config.json names its kind; without it, it is an EAGLE head. The
entry `target_layers` numbers the target's layers whose hidden states it reads.
"""

from collections.abc import Callable
from dataclasses import dataclass

from configs.fields import mismatch, one_of
from drafters.block import BlockHead
from drafters.eagle import EagleHead
from models.base import TransformerSpec
from models.files.network import KeyMap, Slot, block_keys

ENTRY, DEFAULT = "drafter", "eagle"  # of config.json
LAYERS = "target_layers"  # of config.json


@dataclass(frozen=True)
class Kind:
    """A kind of drafter.

    network: its sizes, and whether its first layer has a bias -> its network. keys: the same -> the
    public keys of its weights.
    """

    network: Callable[[TransformerSpec, bool], EagleHead]
    keys: Callable[[TransformerSpec, bool], KeyMap]


def eagle_keys(spec: TransformerSpec, bias: bool) -> KeyMap:
    """Return the public keys of a head's weights -> parameters of `EagleHead`."""
    keys = {"embed_tokens.weight": Slot("embedding.weight"), "fc.weight": Slot("fc.weight")}
    if bias:
        keys["fc.bias"] = Slot("fc.bias")
    if spec.target_layers:
        keys["states.weight"] = Slot("states.weight")
    for layer in range(spec.layers):
        keys |= block_keys(spec, "", "blocks.blocks.", layer)
    return keys


def block_head_keys(spec: TransformerSpec, bias: bool) -> KeyMap:
    """Return the public keys of a head's weights -> parameters of `BlockHead`."""
    return eagle_keys(spec, bias) | {"share": Slot("share"), "trust": Slot("sharpness")}


KINDS = {
    "eagle": Kind(EagleHead, eagle_keys),
    "block": Kind(BlockHead, block_head_keys),
}


def kind_of(config: dict, name: str) -> Kind:
    """Return the kind of the drafter that a config.json describes.

    Raises:
        ValueError: it names another kind; `name` is the file's.
    """
    kind = config.get(ENTRY, DEFAULT)
    if not isinstance(kind, str) or kind not in KINDS:
        raise mismatch(f"{name}: {ENTRY}", repr(kind), one_of(KINDS))
    return KINDS[kind]


def target_layers(config: dict, target: TransformerSpec, name: str) -> tuple[int, ...]:
    """Return the target's layers whose hidden states a drafter reads, by its config.json.

    Raises:
        ValueError: they are no layers below the target's last; `name` is the file's.
    """
    layers = config.get(LAYERS, [])
    below = range(1, target.layers)
    # isinstance would let true and false pass as numbers
    if not isinstance(layers, list) or any(type(n) is not int or n not in below for n in layers):
        expected = f"numbers from 1 to {target.layers - 1}, rising"
        raise mismatch(f"{name}: {LAYERS}", repr(layers), expected)
    if layers != sorted(set(layers)):
        raise mismatch(f"{name}: {LAYERS}", repr(layers), str(sorted(set(layers))))
    return tuple(layers)
