"""The blocks of a transformer on a CPU, with one kernel for all that lies between two products.

torch runs some 27 operations per layer. For a few tokens of a small model, starting them takes as
long as the matrix products. Here a layer is four products and four kernels (`kernels.cpp`).
"""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from models.base import Context, Layers, Placed, TransformerSpec
from models.native import kernels
from models.rotary import rotate_pairs

_MOST_TOKENS = 128  # per row of a pass: torch reads longer ones, such as prompts, faster
_VECTORS = (1, 2, 4, 8, 16)  # of a head, for which attention is compiled
_NAMES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16"}
_N, _AT = ctypes.c_int64, ctypes.c_void_p


class Layout(ctypes.Structure):
    """What all layers read in a pass over tokens (rows, n), as `kernels.cpp` has it.

    rotation: (rows, n, 2 head_dim) cosines and signed sines. mask: (rows, 1, n, slots), added, with
    strides. places: (rows, n) the slots of the new keys and values. queries: room for (rows, heads,
    n, head_dim).
    """

    _fields_ = [
        *((name, _N) for name in ("rows", "tokens", "heads", "kv_heads", "size")),
        *((name, _N) for name in ("slots", "row_stride", "head_stride", "mask_row", "mask_token")),
        ("pairs", _N),
        *((name, _AT) for name in ("rotation", "mask", "places", "queries")),
    ]


class Kernels:
    """The functions of `kernels.cpp` for hidden states of a type."""

    norm: Callable
    gate: Callable
    attention: Callable

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype):
        signatures = {
            "norm": (_N, _N, _AT, _AT, _AT, ctypes.c_double, _AT, _AT),
            "gate": (_N, _N, _AT, _AT),
            "attention": (ctypes.POINTER(Layout), *[_AT] * 6),
        }
        for name, arguments in signatures.items():
            function = getattr(library, f"adt_{name}_{_NAMES[dtype]}")
            function.argtypes, function.restype = arguments, None
            setattr(self, name, function)


@dataclass(frozen=True)
class Pass:
    """A pass over tokens (rows, n) through blocks.

    held: tensors whose memory the layout points to. memory: addresses of every layer's keys and
    values, in turn.
    """

    kernels: Kernels
    layout: Layout
    held: tuple[Tensor, ...]
    memory: list[int]

    def run(self, blocks: Iterable[nn.Module], x: Tensor, first: int, layers: Layers) -> Tensor:
        """Return what `Blocks.forward` does for these blocks, which begin with number `first`."""
        x, more = x.clone(memory_format=torch.contiguous_format), None
        out = torch.empty_like(x)
        states = []
        for number, block in enumerate(blocks, first + 1):
            attention, mlp = block.attention, block.mlp
            if block.swin:
                self._add_norm(block.attention_norm, x, self._attention(attention, x))
                self._add_norm(block.mlp_norm, x, self._mlp(mlp, x))
            else:  # sums are made where they are normalised
                normed = self._norm(block.attention_norm, x, more, out)
                more = self._attention(attention, normed)
                more = self._mlp(mlp, self._norm(block.mlp_norm, x, more, out))
            if number in layers:
                states.append(x.clone() if more is None else x + more)
        if more is not None:
            x.add_(more)
        return torch.stack([x, *states], 2) if layers else x

    def _norm(self, norm: nn.Module, x: Tensor, more: Tensor | None, out: Tensor) -> Tensor:
        """Add more to x (rows, n, hidden), in place; return the norm of the sum, in out."""
        if isinstance(norm, nn.Identity):
            return x if more is None else x.add_(more)
        rows, n, width = x.shape
        self.kernels.norm(
            rows * n, width, x.data_ptr(), None if more is None else more.data_ptr(),
            norm.weight.data_ptr(), norm.eps, out.data_ptr(), None,
        )  # fmt: skip
        return out

    def _add_norm(self, norm: nn.Module, x: Tensor, more: Tensor) -> None:
        """Add the norm of more to x (rows, n, hidden), in place."""
        rows, n, width = x.shape
        weight = norm.weight.data_ptr()
        self.kernels.norm(
            rows * n, width, more.data_ptr(), None, weight, norm.eps, None, x.data_ptr()
        )

    def _attention(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Return a layer's attention for x (rows, n, hidden)."""
        norm, place = layer.qk_norm, 2 * layer.layer
        weights = (None, None) if norm is None else (norm.weight.data_ptr(), norm.bias.data_ptr())
        qkv, found = layer.qkv.product(x), torch.empty_like(x)
        self.kernels.attention(
            self.layout, qkv.data_ptr(), *weights, *self.memory[place : place + 2], found.data_ptr()
        )
        return layer.out.product(found)

    def _mlp(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Return a layer's MLP for x (rows, n, hidden)."""
        both = layer.gate_up.product(x)
        rows, n, width = both.shape
        found = both.new_empty(rows, n, width // 2)
        self.kernels.gate(rows * n, width // 2, both.data_ptr(), found.data_ptr())
        return layer.down.product(found)


@cache
def can_fuse(spec: TransformerSpec, dtype: torch.dtype) -> bool:
    """Return whether blocks of these sizes and of this type can be fused."""
    lanes = 8 if dtype == torch.float64 else 16  # numbers that kernels compute at once
    widths = spec.hidden, spec.intermediate, spec.head_dim
    return (
        dtype in _NAMES
        and all(width % lanes == 0 for width in widths)
        and spec.head_dim // lanes in _VECTORS
        and (spec.first_norm or not spec.swin_norm)
    )


def open_pass(blocks: nn.Module, x: Tensor, context: Context) -> Pass | None:
    """Return a pass over x (rows, n, hidden) through blocks, or None if torch has to run it.

    That is so in training, without a cache, on other devices, while a compiler follows, and for
    long rows.
    """
    cached, mask, spec, (rows, n, _) = context.cache, context.mask, blocks.spec, x.shape
    watched = (
        torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    )
    if watched or type(x) is not Tensor or not x.is_cpu or n > _MOST_TOKENS:
        return None
    if mask is None or not isinstance(cached, Placed) or not can_fuse(spec, x.dtype):
        return None
    keys, mask = cached.visible[0], mask.expand(rows, -1, n, -1)
    rotation = blocks.rotary.table_at(context.positions, x.dtype).to(mask.dtype)
    held = rotation, mask, cached.slots(rows, n), keys.new_empty(rows, spec.heads, n, spec.head_dim)
    layout = Layout(
        rows, n, spec.heads, spec.kv_heads, spec.head_dim, keys.shape[2], *keys.stride()[:2],
        mask.stride(0), mask.stride(2), blocks.blocks[0].attention.rotate is rotate_pairs,
        *(tensor.data_ptr() for tensor in held),
    )  # fmt: skip
    return Pass(_kernels(x.dtype), layout, held, [part.data_ptr() for part in cached.visible])


@cache
def _kernels(dtype: torch.dtype) -> Kernels:
    return Kernels(kernels(), dtype)
