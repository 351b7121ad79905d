"""Quantisation of a target's layers: less memory, and another target.

Every matrix of the layers is stored as int8 with a scale per row, or as int4 with a scale and an
offset per 64 weights, by torchao; activations keep their type. With fp8 (`models.fp8`) they are
rounded as well. Embeddings, norms, the head and everything outside the layers stay as they are.
Lossless methods give the tokens of plain decoding with the same quantised target.
"""

from typing import Any

import torch
from torch import nn

from configs.fields import Flag, mismatch, refuse
from models.cpu.linear import Linear, forget_packed, linears_of
from models.cpu.native import TYPES
from models.fp8 import check_fp8, use_fp8
from models.target import TargetModel
from models.transformer import Blocks
from support.extras import install
from support.output import remark

GROUP = 64  # weights with a scale of their own, of int4
_LAYOUT = "tile_packed_to_4d"  # of torch's own int4 kernel; torchao's other ones need more packages
_PADDED = 1024  # it fills up rows to a multiple of this


def weight_format(kind: str, device: torch.device) -> Any:
    """Return torchao's configuration of `int8` or `int4`, or `fp8`, for a device that has it."""
    if kind == "fp8":
        check_fp8(device)
        return kind
    if kind == "int4" and device.type != "cuda":
        refuse("quantize", kind, "int8, or int4 with a CUDA device")
    try:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig
    except ImportError as error:
        raise ValueError(
            f"--quantize: found {kind!r}, which needs the package torchao, and it cannot be "
            f"imported ({error}): {install('quantize')}"
        ) from error
    if kind == "int8":
        if device.type == "cuda":
            remark(
                "--quantize int8: saves memory, not time: every pass writes the weights in "
                "--dtype and reads them again, 2.5 times the bytes of bf16 (predicted)"
            )
        # Without this flag torchao changes inductor's settings for the whole process.
        return Int8WeightOnlyConfig(set_inductor_config=False)
    return Int4WeightOnlyConfig(
        group_size=GROUP, int4_packing_format=_LAYOUT, set_inductor_config=False
    )


def quantize(target: TargetModel, form: Any, device: torch.device) -> None:
    """Quantise the layers of a target in the CPU's memory, and move all of it to a device.

    The device holds one unquantised matrix at a time. form: of `weight_format`.
    """
    layers = target.transformer.blocks
    forget_packed(layers)
    if form == "fp8":
        use_fp8(layers)
    else:
        _by_torchao(layers, form, device)
    target.transformer.to(device)
    target.move(device)


def _by_torchao(layers: Blocks, form: Any, device: torch.device) -> None:
    from torchao.quantization import quantize_

    quantize_(layers, form, lambda part, _: isinstance(part, Linear), device)
    for name, linear in layers.named_modules():
        # torchao passes over a matrix that it cannot take without raising
        if isinstance(linear, Linear) and type(linear.weight.data) is torch.Tensor:
            shape = str(tuple(linear.weight.shape))
            raise mismatch(
                Flag("quantize", f"matrix {name}"), shape, f"rows of a multiple of {GROUP}"
            )


def weight_bytes(network: nn.Module, kind: str | None, dtype: torch.dtype) -> int:
    """Return the bytes of a network's weights, of whose layers the matrices may be quantised."""
    matrices = _quantized(network, kind)
    others = {*network.parameters()} - {matrix.weight for matrix in matrices}
    whole = sum(parameter.numel() for parameter in others) * dtype.itemsize
    return whole if kind is None else whole + sum(_bytes(matrix, kind) for matrix in matrices)


def copies_bytes(network: nn.Module, kind: str | None, dtype: torch.dtype) -> int:
    """Return the bytes of packed copies on CPUs, at most; quantised matrices have none."""
    copied = {*linears_of(network)} - _quantized(network, kind) if dtype in TYPES else ()
    return sum(dtype.itemsize * linear.weight.numel() for linear in copied)


def _quantized(network: nn.Module, kind: str | None) -> set[Linear]:
    """Return the matrices of a network that are quantised."""
    if kind is None:
        return set()
    layers = (module for module in network.modules() if isinstance(module, Blocks))
    return {matrix for blocks in layers for matrix in linears_of(blocks)}


def _bytes(matrix: Linear, kind: str) -> int:
    """Return the bytes of a quantised matrix with its scales."""
    rows, columns = matrix.weight.shape
    if kind in ("int8", "fp8"):
        return rows * (columns + torch.float32.itemsize)
    padded = -(-columns // _PADDED) * _PADDED
    return rows * (padded // 2 + padded // GROUP * 2 * torch.bfloat16.itemsize)
