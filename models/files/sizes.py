"""The sizes in a config.json against the shapes of the stored tensors, before a network is built.

A network of the wrong sizes would take all memory, or minutes even without memory: 100,000 layers.
"""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from models.base import TransformerSpec
from models.files.weights import folder_shapes, naming
from support.json_files import read_object

# of the decoder; a checkpoint may hold an image encoder with layers of its own
_LAYER = re.compile(
    r"(?:model\.|model\.(?:language|text)_model\.|(?:language|text)_model\.model\.)?"
    r"layers\.(\d+)\."
)
_NESTED = ("text_config", "language_config")  # where config.json has the decoder's entries
# entry of config.json -> ends of keys whose tensors have this size, and on which axis
_SHAPED: dict[str, tuple[tuple[str, int], ...]] = {
    "vocab_size": (("embed_tokens.weight", 0), ("lm_head.weight", 0)),
    "hidden_size": (
        ("embed_tokens.weight", 1),
        ("lm_head.weight", 1),
        ("self_attn.q_proj.weight", 1),
        ("self_attn.o_proj.weight", 0),
        ("mlp.gate_proj.weight", 1),
        ("mlp.down_proj.weight", 0),
    ),
    "intermediate_size": (
        ("mlp.gate_proj.weight", 0),
        ("mlp.up_proj.weight", 0),
        ("mlp.down_proj.weight", 1),
    ),
    "caption_dim": (("cap_proj.fc1.weight", 1), ("uncond_embedding", 1)),
    "cls_token_num": (("uncond_embedding", 0),),
}


def fitting_config(
    folder: Path, spec_of: Callable[[dict], TransformerSpec]
) -> tuple[dict, TransformerSpec]:
    """Return a checkpoint's config.json and the sizes in it, checked against its weights."""
    config = read_object(folder / "config.json")
    shapes = folder_shapes(folder)
    with naming(folder):
        spec = spec_of(config)
        if faults := size_faults(config, shapes):
            raise ValueError(f"config.json: {'; '.join(faults)}")
    return config, spec


def size_faults(
    config: Mapping[str, object],
    shapes: Mapping[str, tuple[int, ...]],
    unread: Collection[str] = (),
) -> list[str]:
    """Return, in words, every size of a config.json that the stored tensors contradict.

    A size is contradicted where all tensors that have it agree on another one. Where they differ
    among themselves, single tensors are wrong, which `Network.faults` names. Entries that are no
    whole numbers are left to whoever reads them.

    shapes: by key. unread: keys of tensors whose files cannot be read.
    """
    config = next((config[name] for name in _NESTED if isinstance(config.get(name), dict)), config)
    # a vision model has layers and sizes of its own
    shapes = {key: shape for key, shape in shapes.items() if "vision_model." not in key}
    stored = {
        entry: {
            shape[axis]
            for key, shape in shapes.items()
            for end, axis in ends
            if key.endswith(end) and axis < len(shape)
        }
        for entry, ends in _SHAPED.items()
    }
    faults = [
        f"{entry} is {config[entry]}, the weights hold {next(iter(sizes))}"
        for entry, sizes in stored.items()
        if type(config.get(entry)) is int and len(sizes) == 1 and config[entry] not in sizes
    ]
    numbers = (int(match[1]) for key in [*shapes, *unread] if (match := _LAYER.match(key)))
    layers, stated = max(numbers, default=-1) + 1, config.get("num_hidden_layers")
    if type(stated) is int and 0 < layers != stated:
        faults.append(f"num_hidden_layers is {stated}, the weights hold {layers}")
    return faults
