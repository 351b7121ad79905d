"""The blocks of a transformer on a CPU, all layers in one call of compiled kernels.

torch runs some 27 operations per layer. For a few tokens of a small model, starting them takes as
long as the matrix products, and so does waiting for one another's threads.
"""

import ctypes
from array import array
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from models.base import CachePass, Context, Layers, TransformerSpec
from models.cpu.linear import Linear, Panels, can_read
from models.cpu.native import TYPES, check_size, kernels_of, lanes
from models.rotary import rotate_pairs
from models.transformer import Block, Blocks, run_by_torch

MOST_TOKENS = 512  # per row of a pass; longer ones were not measured against torch
_VECTORS = (1, 2, 4, 8, 16, 32)  # of a head, for which attention is compiled
_MOST_SIZE = 256  # of a head: MOST_SIZE in attention.h
_N, _AT = ctypes.c_int64, ctypes.c_void_p


class Pass(ctypes.Structure):
    """A pass over tokens (rows, n), as `kernels/attention.h` has it.

    memory: (2 layers, rows, kv_heads, slots, head_dim), keys and values in turn, with strides.
    rotation: a row for every position, cosines and signed sines. positions: (rows, n). mask: (rows,
    1, n, slots), added, with strides. written: (rows, n) the slots of the new keys and values.
    ends: (rows,) how many slots a row has. numbers: after which layers hidden states are kept.
    """

    _fields_ = [
        *((name, _N) for name in ("rows", "tokens", "hidden", "intermediate")),
        *((name, _N) for name in ("heads", "kv_heads", "size")),
        *((name, _N) for name in ("layer_stride", "row_stride", "head_stride")),
        *((name, _N) for name in ("mask_row", "mask_token")),
        *((name, _N) for name in ("pairs", "swin", "count", "kept")),
        ("eps", ctypes.c_double),
        *((name, _AT) for name in ("rotation", "positions", "mask", "written", "ends")),
        *((name, _AT) for name in ("numbers", "layers", "norm", "memory")),
    ]


@dataclass
class Weights:
    """What kernels read of all blocks, valid as long as these packed copies are in use."""

    dtype: torch.dtype  # of hidden states
    stored: torch.dtype  # in memory
    linears: list[Linear]
    packed: list[Panels]
    table: array  # (layers, 8) as `Layer` of `kernels/network.h` has it
    rotation: Tensor  # (positions, 2 head_dim) cosines and signed sines


_weights: WeakKeyDictionary[Blocks, Weights] = WeakKeyDictionary()


def can_compile(spec: TransformerSpec, dtype: torch.dtype) -> bool:
    """Return whether blocks of these sizes and of this type can be fused."""
    if dtype not in TYPES:
        return False
    wide = lanes(dtype)
    qkv = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    return (
        # kernels store whole vectors to both halves of the outputs (`half_of` in products.h)
        all(width % (2 * wide) == 0 for width in (spec.hidden, qkv))
        and all(width % wide == 0 for width in (spec.intermediate, spec.head_dim))
        and spec.head_dim // wide in _VECTORS
        and spec.head_dim <= _MOST_SIZE
        # with Swin-norm they read the attention's norm without looking whether there is one
        and (spec.first_norm or not spec.swin_norm)
        # the kernels' MLP is SwiGLU, their norm of heads LayerNorm, and all heads together are as
        # wide as the hidden states
        and not (spec.gpt2 or spec.gelu or spec.qk_rms or spec.qkv_bias or spec.sandwich_norm)
        and spec.heads * spec.head_dim == spec.hidden
    )


def run_compiled(
    blocks: Blocks, x: Tensor, context: Context, layers: Layers, norm: nn.Module | None
) -> Tensor:
    """Run blocks by compiled kernels where these apply, else by torch; as `Blocks.forward`."""
    weights = _weights_for(blocks, x, context)
    if weights is None:
        return run_by_torch(blocks, x, context, layers, norm)
    cached, spec, (rows, n, _) = context.cache, blocks.spec, x.shape
    # Expanded, not copied: a mask that rows or tokens share has the stride 0 there.
    assert isinstance(cached, CachePass) and context.mask is not None, "`_weights_for` looks"
    memory, mask = cached.memory[0], context.mask.expand(rows, -1, n, -1)
    assert memory.dtype == mask.dtype == weights.rotation.dtype
    # the names keep tensors alive whose addresses the call reads
    positions = context.positions.contiguous()
    slots, ends = cached.slots.contiguous(), cached.ends.contiguous()
    numbers = array("q", sorted(layers))
    # The kernels overwrite it.
    x = x.clone(memory_format=torch.contiguous_format)
    states = x.new_empty(len(numbers), *x.shape)
    opened = Pass(
        rows, n, spec.hidden, spec.intermediate, spec.heads, spec.kv_heads, spec.head_dim,
        *memory.stride()[:3], mask.stride(0), mask.stride(2),
        blocks.blocks[0].attention.rotate is rotate_pairs, spec.swin_norm, len(blocks.blocks),
        len(numbers),
        spec.norm_eps, weights.rotation.data_ptr(), positions.data_ptr(), mask.data_ptr(),
        slots.data_ptr(), ends.data_ptr(), numbers.buffer_info()[0],
        weights.table.buffer_info()[0], None if norm is None else norm.weight.data_ptr(),
        memory.data_ptr(),
    )  # fmt: skip
    kernels_of(x.dtype, weights.stored).run(ctypes.byref(opened), x.data_ptr(), states.data_ptr())
    return torch.stack([x, *states], 2) if layers else x


def _weights_for(blocks: Blocks, x: Tensor, context: Context) -> Weights | None:
    """Return the weights for a pass by kernels, or None if torch must run it.

    It must in training, without a cache or a mask, where the cache is spread over devices, for
    long rows, and where a weight has no packed copy.
    """
    if torch.is_grad_enabled() or not can_read(x) or x.shape[1] > MOST_TOKENS:
        return None
    cache = context.cache
    # accelerate's layers have a memory for each device
    if context.mask is None or not isinstance(cache, CachePass) or len(cache.memory) != 1:
        return None
    weights = weights_of(blocks)
    return weights if weights is not None and weights.dtype == x.dtype else None


def weights_of(blocks: Blocks) -> Weights | None:
    """Return what kernels read of blocks, or None if they cannot be fused."""
    weights = _weights.get(blocks)
    # Copies are compared by identity: one is replaced, never changed.
    if weights is not None and [linear.packed for linear in weights.linears] == weights.packed:
        return weights
    linears = [module for module in blocks.modules() if isinstance(module, Linear)]
    packed = [linear.packed for linear in linears if linear.packed is not None]
    # Not of `attention_norm`, which layer 0 of an EAGLE head lacks.
    dtype = blocks.blocks[0].mlp_norm.weight.dtype
    if (
        len(packed) < len(linears)
        or not can_compile(blocks.spec, dtype)
        or len({panels.stored for panels in packed}) > 1
    ):
        return None
    check_size(Pass)
    # Norms are not watched: what moves them also moves the matrices, which drop their copies.
    table = array("q", [address for block in blocks.layers for address in _addresses(block)])
    stored, rotation = packed[0].stored, blocks.rotary.table_in(dtype)
    _weights[blocks] = Weights(dtype, stored, linears, packed, table, rotation)
    return _weights[blocks]


def _addresses(block: Block) -> tuple[int, ...]:
    """Return a row of `Weights.table`; 0 where a block has no such weight."""
    attention, mlp = block.attention, block.mlp
    head = attention.qk_norm
    return (
        0 if isinstance(block.attention_norm, nn.Identity)
        else block.attention_norm.weight.data_ptr(),
        _address(attention.qkv),
        *((0, 0) if head is None else (head.weight.data_ptr(), head.bias.data_ptr())),
        _address(attention.out),
        block.mlp_norm.weight.data_ptr(),
        _address(mlp.gate_up),
        _address(mlp.down),
    )  # fmt: skip


def _address(linear: Linear) -> int:
    assert linear.packed is not None, "`weights_of` looks"
    return linear.packed.address
