"""A network and the public keys that fill it; reading is strict, and every difference is named.

The sizes in config.json are compared with the stored tensors before a network is built: one of the
wrong sizes would take all memory, or minutes even without memory: 100,000 layers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from configs.fields import refusing
from models.base import TransformerSpec
from models.files.tensors import Rules, read_tensors, renamed, shapes_in
from models.files.weights import folder_shapes, read_config, weight_files
from support.wording import first_of

_SHOWN = 20  # differences in an error
_COMPUTED = "rotary_emb.inv_freq"  # ends of keys that transformers wrote until 4.31
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


@dataclass(frozen=True)
class Slot:
    """Where a tensor of the public layout goes."""

    parameter: str  # of our network
    rows: slice = field(default_factory=lambda: slice(None))  # of the parameter, to be filled
    source: slice = field(default_factory=lambda: slice(None))  # rows of the tensor that are taken
    height: int | None = None  # rows that the tensor must have, where only some are taken


KeyMap = dict[str, Slot]  # public key -> slot


Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Network(Generic[Module]):
    """A network whose weights are still on the meta device, and the public keys that fill it."""

    module: Module
    keys: KeyMap
    ignored: tuple[str, ...] = ()  # prefixes of public keys that are not its weights
    optional: tuple[str, ...] = ()  # keys that may be absent
    renames: Rules = ()  # keys of other layouts -> this one's
    prefix: str = ""  # of its keys, where other networks' weights are in the same files

    def name(self, key: str) -> str:
        """Return the key of this layout for a key of any layout."""
        return renamed(key, self.renames)

    def fill(self, folder: Path, dtype: torch.dtype, device: torch.device) -> set[str]:
        """Read a checkpoint folder and freeze the module; returns the absent optional keys."""
        files = weight_files(folder)
        self.check(shapes_in(files), str(folder))  # before memory is allocated
        return self.read(files, dtype, device)

    def read(self, files: Sequence[Path], dtype: torch.dtype, device: torch.device) -> set[str]:
        """Read weight files that `check` has found to fit; returns as `fill` does."""
        self.module.to(dtype)
        # memory is allocated once, in its type and place; the files are read tensor by tensor
        # not `to_empty`, for whose `empty_like` of a meta tensor torch loads sympy
        self.module._apply(lambda meta: torch.empty(meta.shape, dtype=meta.dtype, device=device))
        self.module.requires_grad_(False).eval()
        tensors, absent = self.module.state_dict(), set(self.optional)
        for key, tensor in read_tensors(files):
            # `faults` has compared all shapes; what is not ours is passed over
            name = self.name(key)
            if slot := self.keys.get(name):
                if not tensor.is_floating_point():  # integers without their scales
                    got = str(tensor.dtype).removeprefix("torch.")
                    where = files[0].parent
                    raise ValueError(f"{where}: {key}: expected floating-point numbers, got {got}")
                to, value = tensors[slot.parameter][slot.rows], tensor[slot.source]
                if value.numel() < to.numel():  # of a norm: neighbouring heads share a row
                    rows = value.reshape(-1, to.shape[-1])
                    value = rows.repeat_interleave(len(to) // len(rows), 0)
                # a matrix may fill a 1 x 1 convolution, or the other way round
                to.copy_(value.reshape(to.shape))
                absent.discard(name)
        return absent

    def check(self, stored: Mapping[str, tuple[int, ...]], source: str) -> None:
        """Raise a ValueError about `source` with the first of its `faults`, if it has any."""
        if faults := self.faults(stored):
            raise ValueError(f"{source} does not fit the model: {first_of(faults, _SHOWN)}")

    def faults(self, stored: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Return, in words, all faults of stored shapes."""
        shapes = {
            self.name(key): shape for key, shape in stored.items() if key.startswith(self.prefix)
        }
        present = {*shapes, *self.optional}
        tensors = self.module.state_dict()
        differences = (
            _difference(key, shape, tensors, self.keys)
            for key, shape in shapes.items()
            if key in self.keys or not (key.startswith(self.ignored) or key.endswith(_COMPUTED))
        )
        missing = [f"missing key {key}" for key in self.keys if key not in present]
        return missing + [fault for fault in differences if fault is not None]


def _difference(
    key: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor], keys: KeyMap
) -> str | None:
    """Return, in words, what is wrong with a public key of a shape; None if it fits."""
    slot = keys.get(key)
    if slot is None:
        return f"unexpected key {key}"
    if slot.height is not None and shape[:1] != (slot.height,):
        return f"{key} has shape {shape}, expected {slot.height} rows"
    expected = tuple(tensors[slot.parameter][slot.rows].shape)
    # a scalar has no rows to take a slice of
    read = (len(range(*slot.source.indices(shape[0]))), *shape[1:]) if shape else shape
    norm = ".q_norm." in key or ".k_norm." in key
    if _flat(read) == _flat(expected) or (norm and _shared(read, expected)):
        return None
    return f"{key} has shape {read}, expected {expected}"


def _shared(read: tuple[int, ...], norm: tuple[int, ...]) -> bool:
    """Return whether equally many heads of a norm (heads, head_dim) can share every row read.

    Lumina-mGPT-34B has a row for each of four groups of heads. A norm that all heads share is
    (1, head_dim) or (head_dim,).
    """
    rows = [(n,) for n in range(1, norm[0]) if norm[0] % n == 0]
    return read[-1:] == norm[1:] and read[:-1] in [(), *rows]


def _flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without axes of one: some layouts have a convolution of 1 x 1 for a matrix."""
    return tuple(size for size in shape if size > 1)


def public_state(module: nn.Module, keys: KeyMap) -> dict[str, Tensor]:
    """Return a module's weights in the public layout, for maps that take all rows."""
    parameters = dict(module.named_parameters())
    return {
        key: parameters[slot.parameter].detach()[slot.rows].clone().contiguous()
        for key, slot in keys.items()
    }


def block_keys(spec: TransformerSpec, public: str, ours: str, layer: int) -> KeyMap:
    """Return the keys of one decoder block in the Hugging Face layout of Llama and Chameleon."""
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    gate, up = slice(0, spec.intermediate), slice(spec.intermediate, 2 * spec.intermediate)
    keys = {
        "self_attn.q_proj.weight": Slot("attention.qkv.weight", slice(0, q)),
        "self_attn.k_proj.weight": Slot("attention.qkv.weight", slice(q, q + kv)),
        "self_attn.v_proj.weight": Slot("attention.qkv.weight", slice(q + kv, q + 2 * kv)),
        "self_attn.o_proj.weight": Slot("attention.out.weight"),
        "mlp.gate_proj.weight": Slot("mlp.gate_up.weight", gate),
        "mlp.up_proj.weight": Slot("mlp.gate_up.weight", up),
        "mlp.down_proj.weight": Slot("mlp.down.weight"),
        "post_attention_layernorm.weight": Slot("mlp_norm.weight"),
    }
    if spec.first_norm or layer > 0:
        keys["input_layernorm.weight"] = Slot("attention_norm.weight")
    if spec.qk_norm or spec.qk_rms:
        queries, kept = slice(0, spec.heads), slice(spec.heads, spec.heads + spec.kv_heads)
        for parameter in ("weight",) if spec.qk_rms else ("weight", "bias"):
            keys[f"self_attn.q_norm.{parameter}"] = Slot(f"attention.qk_norm.{parameter}", queries)
            keys[f"self_attn.k_norm.{parameter}"] = Slot(f"attention.qk_norm.{parameter}", kept)
    public, ours = f"{public}layers.{layer}.", f"{ours}{layer}."
    return {public + key: Slot(ours + slot.parameter, slot.rows) for key, slot in keys.items()}


def fitting_config(
    folder: Path, spec_of: Callable[[dict], TransformerSpec]
) -> tuple[dict, TransformerSpec]:
    """Return a checkpoint's config.json and the sizes in it, checked against its weights."""
    config = read_config(folder)
    return config, fitting_spec(folder, config, folder_shapes(folder), spec_of)


def fitting_spec(
    folder: Path,
    config: dict,
    shapes: Mapping[str, tuple[int, ...]],
    spec_of: Callable[[dict], TransformerSpec],
) -> TransformerSpec:
    """Return the sizes in a folder's config.json, checked against the shapes of its weights."""
    with refusing(str(folder)):
        spec = spec_of(config)
        # before a network is built, which of wrong sizes takes all memory
        if faults := size_faults(config, shapes):
            raise ValueError(f"config.json: {'; '.join(faults)}")
    return spec


def size_faults(
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
) -> list[str]:
    """Return, in words, every size of a config.json that the stored tensors contradict.

    That is one on which all tensors that have it agree otherwise. Where they differ themselves,
    single tensors are wrong, which `Network.faults` names.
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
    numbers = (int(match[1]) for key in shapes if (match := _LAYER.match(key)))
    layers, stated = max(numbers, default=-1) + 1, config.get("num_hidden_layers")
    if type(stated) is int and 0 < layers != stated:
        faults.append(f"num_hidden_layers is {stated}, the weights hold {layers}")
    return faults
