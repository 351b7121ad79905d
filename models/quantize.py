"""Weight-only quantisation of a target's layers by torchao: less memory, and another target.

Every matrix of the layers is stored as int8 with a scale per row, or as int4 with a scale and an
offset per 64 weights; activations keep their type. Embeddings, norms, the head and everything
outside the layers stay as they are. Lossless methods give the tokens of plain decoding with the
same quantised target.
"""

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn

from configs.fields import mismatch, refuse
from models.linear import Linear, forget_packed, packed_bytes
from models.target import TargetModel
from models.transformer import Blocks
from support.extras import install

GROUP = 64  # weights with a scale of their own, of int4
_LAYOUT = "tile_packed_to_4d"  # of torch's own int4 kernel; torchao's other ones need more packages
_PADDED = 1024  # it fills up rows to a multiple of this


def weight_format(kind: str, device: torch.device) -> Any:
    """Return torchao's configuration of `int8` or `int4`, whose kernel needs a CUDA device."""
    if kind == "int4" and device.type != "cuda":
        refuse("quantize", kind, "int8, or int4 with a CUDA device")
    library = _torchao(kind)
    if kind == "int8":
        # Without this flag torchao changes inductor's settings for the whole process.
        return library.Int8WeightOnlyConfig(set_inductor_config=False)
    return library.Int4WeightOnlyConfig(
        group_size=GROUP, int4_packing_format=_LAYOUT, set_inductor_config=False
    )


def _torchao(kind: str = "") -> ModuleType:
    try:
        return import_module("torchao.quantization")
    except ImportError as error:
        raise ValueError(
            f"--quantize: found {kind!r}, which needs the package torchao, and it cannot be "
            f"imported ({error}): {install('quantize')}"
        ) from error


def quantize(target: TargetModel, form: Any, device: torch.device) -> None:
    """Quantise the layers of a target in the CPU's memory, and move all of it to a device.

    The device holds one unquantised matrix at a time. form: of `weight_format`.
    """
    layers = target.transformer.blocks
    forget_packed(layers)
    _torchao().quantize_(layers, form, lambda part, _: isinstance(part, Linear), device)
    for name, linear in _matrices(layers):
        # torchao passes over a matrix that it cannot take without raising
        if type(linear.weight.data) is torch.Tensor:
            shape = str(tuple(linear.weight.shape))
            raise mismatch(f"--quantize: matrix {name}", shape, f"rows of a multiple of {GROUP}")
    target.transformer.to(device)
    target.place(device)


def weight_bytes(network: nn.Module, kind: str | None, dtype: torch.dtype) -> int:
    """Return the bytes of a network's weights, of whose layers the matrices may be quantised."""
    quantized = () if kind is None else layers_of(network)
    matrices = [matrix for layers in quantized for _, matrix in _matrices(layers)]
    others = {*network.parameters()} - {matrix.weight for matrix in matrices}
    whole = sum(parameter.numel() for parameter in others) * dtype.itemsize
    return whole + sum(_quantized(matrix, kind) for matrix in matrices)


def copies_bytes(network: nn.Module, kind: str | None, dtype: torch.dtype) -> int:
    """Return the bytes of the packed copies on CPUs, which quantised matrices do not have."""
    without = () if kind is None else layers_of(network)
    return packed_bytes(network, dtype) - sum(packed_bytes(layers, dtype) for layers in without)


def layers_of(network: nn.Module) -> Iterator[Blocks]:
    return (module for module in network.modules() if isinstance(module, Blocks))


def _quantized(matrix: Linear, kind: str) -> int:
    """Return the bytes of a quantised matrix with its scales."""
    rows, columns = matrix.weight.shape
    if kind == "int8":
        return rows * (columns + torch.float32.itemsize)
    padded = -(-columns // _PADDED) * _PADDED
    return rows * (padded // 2 + padded // GROUP * 2 * torch.bfloat16.itemsize)


def _matrices(layers: nn.Module) -> Iterator[tuple[str, Linear]]:
    return ((name, module) for name, module in layers.named_modules() if isinstance(module, Linear))
