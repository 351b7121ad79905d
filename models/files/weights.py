"""Reading checkpoints: hub id or folder, safetensors or .bin, single or sharded; strict, every difference named."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from models.base import TransformerSpec
from models.files.headers import read_header
from models.files.places import WEIGHT_FILES, WEIGHT_INDEXES
from models.files.tensors import read_tensors


@dataclass(frozen=True)
class Slot:
    """Where a tensor of the public layout belongs: a parameter, which of its rows, which rows of the public tensor, and
    how many it has to have."""

    parameter: str
    rows: slice = field(default_factory=lambda: slice(None))
    source: slice = field(default_factory=lambda: slice(None))
    height: int | None = None


KeyMap = dict[str, Slot]  # public key -> slot


@dataclass(frozen=True)
class Network:
    """A network as it is loaded, its weights still on the meta device, and the public keys that fill it.

    ignored: prefixes of public keys that are not its weights. optional: keys that may be absent.
    """

    module: nn.Module
    keys: KeyMap
    ignored: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def fill(self, folder: Path, dtype: torch.dtype, device: torch.device) -> set[str]:
        """Read the weights of a checkpoint folder into the module, frozen; the optional keys that were absent.

        Memory is allocated once, in its type and place; the files are read tensor by tensor.
        """
        self.module.to(dtype).to_empty(device=device).requires_grad_(False).eval()
        return load_strict(
            self.module, read_tensors(weight_files(folder)), self.keys, self.ignored, self.optional
        )

    def faults(
        self, found: Mapping[str, tuple[int, ...]], unread: Collection[str] = ()
    ) -> list[str]:
        """Everything wrong with public keys and shapes, in words; unread: keys of files that cannot be read."""
        parameters = dict(self.module.named_parameters())
        differences = {
            key: difference(key, shape, parameters, self.keys) for key, shape in found.items()
        }
        absent = [key for key in self.keys if key not in {*found, *unread, *self.optional}]
        return [f"missing key {key}" for key in absent] + [
            text
            for key, text in differences.items()
            if text is not None and not key.startswith(self.ignored)
        ]


def read_json(path: Path) -> dict:
    """A JSON object; ValueError names a missing or damaged file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"missing file: {path}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected a JSON object")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint folder, all shards; ValueError if there are none or a shard is missing."""
    files = listed_files(folder)
    if missing := [str(file) for file in files if not file.is_file()]:
        raise ValueError(
            f"the index in {folder} lists shards that are missing: {', '.join(missing)}"
        )
    return files


def listed_files(folder: Path) -> list[Path]:
    """The weight files that a folder has or that its index lists; ValueError if it names none."""
    if placed := placed_keys(folder):
        return sorted(set(placed.values()))
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return [folder / name]
    raise ValueError(
        f"no weights in {folder}: expected one of {', '.join((*WEIGHT_FILES, *WEIGHT_INDEXES))}"
    )


def placed_keys(folder: Path) -> dict[str, Path]:
    """Which shard holds which key, as the folder's index says; empty without an index."""
    for index in WEIGHT_INDEXES:
        if (folder / index).is_file():
            weight_map = read_json(folder / index).get("weight_map")
            if not isinstance(weight_map, dict) or not all(
                isinstance(name, str) for name in weight_map.values()
            ):
                raise ValueError(f"{folder / index} has no weight_map")
            return {key: folder / name for key, name in weight_map.items()}
    return {}


def folder_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors of a checkpoint folder, by key, from the headers of its files; errors as weight_files
    and read_header."""
    return {
        key: info.shape for file in weight_files(folder) for key, info in read_header(file).items()
    }


def load_strict(
    module: nn.Module,
    tensors: Iterable[tuple[str, Tensor]],
    keys: KeyMap,
    ignored: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> set[str]:
    """Copy public tensors into a module's parameters.

    Args:
        module: parameters may be on any device and of any dtype.
        tensors: public keys and values.
        keys: where each public key belongs; every one must occur.
        ignored: prefixes of public keys that are not weights of this module.
        optional: keys that may be absent.

    Returns:
        The optional keys that were absent.

    Raises:
        ValueError: naming all missing and unexpected keys and all differing shapes.
    """
    parameters = dict(module.named_parameters())
    seen, faults = set(), []
    for key, tensor in tensors:
        seen.add(key)
        fault = difference(key, tuple(tensor.shape), parameters, keys)
        if key in keys and fault is None:
            slot = keys[key]
            parameters[slot.parameter].data[slot.rows].copy_(tensor[slot.source])
        elif fault is not None and not key.startswith(ignored):
            faults.append(fault)
    faults += [f"missing key {key}" for key in keys if key not in seen and key not in optional]
    refuse_faults(faults)
    return set(optional) - seen


def refuse_faults(faults: Sequence[str]) -> None:
    """A ValueError with the first of them, if there are any."""
    if faults:
        shown = "; ".join(faults[:20]) + (
            f"; and {len(faults) - 20} more" if len(faults) > 20 else ""
        )
        raise ValueError(f"the checkpoint does not fit the model: {shown}")


def difference(
    key: str, found: tuple[int, ...], parameters: dict[str, nn.Parameter], keys: KeyMap
) -> str | None:
    """What is wrong with a public key of the shape `found`, in words; None if it fits."""
    slot = keys.get(key)
    if slot is None:
        return f"unexpected key {key}"
    if slot.height is not None and found[:1] != (slot.height,):
        return f"{key} has shape {found}, expected {slot.height} rows"
    place = tuple(parameters[slot.parameter][slot.rows].shape)
    read = (len(range(*slot.source.indices(found[0]))), *found[1:]) if found else found
    return None if _fits(key, read, place) else f"{key} has shape {read}, expected {place}"


def _fits(key: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Equal shapes, or one query/key norm (1, head_dim) or (head_dim,) shared by all heads (heads, head_dim)."""
    shared = (".q_norm." in key or ".k_norm." in key) and found in ((1, wanted[1]), (wanted[1],))
    return found == wanted or shared


def public_state(module: nn.Module, keys: KeyMap) -> dict[str, Tensor]:
    """A module's weights in the public layout: the inverse of load_strict for maps that drop no rows."""
    parameters = dict(module.named_parameters())
    return {
        key: parameters[slot.parameter].detach()[slot.rows].clone().contiguous()
        for key, slot in keys.items()
    }


def block_keys(spec: TransformerSpec, public: str, ours: str, layer: int) -> KeyMap:
    """The keys of one decoder block in the Hugging Face layout of Llama and Chameleon."""
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    public, ours = f"{public}layers.{layer}.", f"{ours}{layer}."
    keys = {
        "self_attn.q_proj.weight": Slot("attention.qkv.weight", slice(0, q)),
        "self_attn.k_proj.weight": Slot("attention.qkv.weight", slice(q, q + kv)),
        "self_attn.v_proj.weight": Slot("attention.qkv.weight", slice(q + kv, q + 2 * kv)),
        "self_attn.o_proj.weight": Slot("attention.out.weight"),
        "mlp.gate_proj.weight": Slot("mlp.gate_up.weight", slice(0, spec.intermediate)),
        "mlp.up_proj.weight": Slot(
            "mlp.gate_up.weight", slice(spec.intermediate, 2 * spec.intermediate)
        ),
        "mlp.down_proj.weight": Slot("mlp.down.weight"),
        "post_attention_layernorm.weight": Slot("mlp_norm.weight"),
    }
    if spec.first_norm or layer > 0:
        keys["input_layernorm.weight"] = Slot("attention_norm.weight")
    if spec.qk_norm:
        for part in ("weight", "bias"):
            keys[f"self_attn.q_norm.{part}"] = Slot(
                f"attention.qk_norm.{part}", slice(0, spec.heads)
            )
            keys[f"self_attn.k_norm.{part}"] = Slot(
                f"attention.qk_norm.{part}", slice(spec.heads, spec.heads + spec.kv_heads)
            )
    return {public + key: Slot(ours + slot.parameter, slot.rows) for key, slot in keys.items()}
