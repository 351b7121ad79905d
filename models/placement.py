"""A target that is larger than one GPU: its layers spread over all of them by accelerate's hooks.

Embedding, final norm and head stay on the first GPU, where drafter, distribution and tree live, so
features come back there. A layer's keys and values lie on the layer's device. Layers that fit on no
GPU stay in the CPU's memory and are copied to the first GPU for every pass, which is slow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from models.base import TransformerSpec
from models.cpu.linear import forget_packed
from models.target import TargetModel
from models.transformer import run_by_torch

_KEPT_FREE = 0.1  # of every GPU, for activations


@dataclass(frozen=True)
class Load:
    """What a transformer takes in memory, in bytes."""

    layer: int  # weights of a layer
    cache: int  # its keys and values
    first: int  # what stays on the first device


def load_of(transformer: nn.Module, rows: int, slots: int, pixels: int) -> Load:
    """Return what a transformer takes, with a KV cache of so many rows and slots, and a drafter.

    pixels: bytes on the first device for turning tokens into pixels.
    """
    spec: TransformerSpec = transformer.spec
    weights = sum(parameter.nbytes for parameter in transformer.parameters())
    itemsize = transformer.norm.weight.itemsize
    layer = sum(parameter.nbytes for parameter in transformer.blocks.parameters()) // spec.layers
    cache = 2 * rows * spec.kv_heads * spec.head_dim * slots * itemsize
    # An EAGLE head: embedding, matrix from 2 hidden to hidden, one layer and its cache.
    drafter = transformer.embedding.weight.nbytes + 2 * spec.hidden**2 * itemsize + layer + cache
    return Load(layer, cache, weights - layer * spec.layers + drafter + pixels)


def plan(layers: int, load: Load, free: Sequence[int]) -> list[int | None]:
    """Return the device of every layer, the first devices filled first; None where none has room.

    The first device also holds the keys and values of the layers without a device, and the weights
    of one of them at a time.
    """
    devices: list[int | None] = []
    # layers without a device take room on the first one, which may leave more without
    for homeless in range(layers + 1):
        copied = load.layer + homeless * load.cache if homeless else 0
        room = [free[0] - load.first - copied, *free[1:]]
        counts = [max(0, size // (load.layer + load.cache)) for size in room]
        # in their order: features cross from each device to the next only once
        placed = [device for device, count in enumerate(counts) for _ in range(count)][:layers]
        devices = [*placed, *[None] * (layers - len(placed))]
        if devices.count(None) <= homeless:
            break
    return devices


def spread(target: TargetModel, rows: int, slots: int, pixels: int) -> None:
    """Spread a target in the CPU's memory over all GPUs; the numbers are those of `load_of`."""
    main = torch.device("cuda", 0)
    target.move(main)
    count = torch.cuda.device_count()
    free = [int(torch.cuda.mem_get_info(number)[0] * (1 - _KEPT_FREE)) for number in range(count)]
    devices = plan(target.spec.layers, load_of(target.transformer, rows, slots, pixels), free)
    if None in devices:
        slow = devices.count(None)
        print(
            f"--device_map auto: {slow} of {len(devices)} layers fit on no GPU and stay "
            "in the CPU's memory: slow"
        )
    dispatch(target, ["cpu" if device is None else device for device in devices], main)


def dispatch(
    target: TargetModel, places: Sequence[int | str], main: torch.device, offload: str | None = None
) -> None:
    """Move a transformer from the CPU's memory to where its parts belong.

    Args:
        target: its other parts are on `main`.
        places: of every layer a CUDA device's number, "cpu" or "disk".
        main: device of all but the layers; those on the CPU or the disk also compute on it.
        offload: folder of the layers on the disk.
    """
    try:
        from accelerate import dispatch_model
    except ImportError as error:
        raise ValueError(
            "--device_map: found 'auto', which needs the package accelerate; it is not here"
        ) from error
    forget_packed(target.transformer)
    target.transformer.blocks.run = run_by_torch  # our kernels would bypass accelerate's hooks
    first = main.index if main.type == "cuda" else "cpu"
    parts = (name for name, _ in target.transformer.named_children() if name != "blocks")
    device_map = dict.fromkeys(parts, first)
    device_map |= {f"blocks.blocks.{layer}": device for layer, device in enumerate(places)}
    # force_hooks: accelerate leaves hooks out where everything lies on one device
    dispatch_model(target.transformer, device_map, first, offload_dir=offload, force_hooks=True)
    computing = tuple(
        torch.device("cuda", device) if isinstance(device, int) else main for device in places
    )
    target.spec = target.transformer.blocks.spec = replace(target.spec, layer_devices=computing)
