"""What blocks do between their matrix products on a GPU, by kernels of Triton.

For a few tokens, launching an operation takes a GPU longer than its work. So each step is one
kernel: a norm with the sum before it; the norm and rotation of heads with writing the cache; the
gate of an MLP. Attention is in `models.cuda.attention`. Between their loads and stores the kernels
compute in fp32, where torch rounds after every operation.
"""

from collections.abc import Container
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from models.base import CachePass, Context
from models.cuda.attention import SIZES, attend, changing, early, wait_for_inputs
from models.fp8 import TYPE as FP8
from models.fp8 import Fp8Linear, ScaledRows
from models.rotary import rotate_pairs
from models.transformer import MLP, Attention, BlockOps, Blocks, HeadNorm, Rotation

TYPE = torch.bfloat16  # fp32 and fp64 are for comparing, by torch's kernels; there is no fp16
_GATED = 1024  # channels that a program of `_gate` computes
_HEADS = 4  # of a token, that a program of `_write_cache` stores


class TritonOps(BlockOps):
    """All steps by kernels.

    Other types, heads that no tile fits, and passes over a cache without slots that kernels could
    write themselves, as those of training, are left to torch.
    """

    def __init__(self, same_bits: bool = False, scaled: Container[nn.Module] = ()):
        """Choose kernels.

        Args:
            same_bits: as `models.cuda.attention.attend` says; the other steps always do so.
            scaled: norms that return rows in fp8, for the products after them (`scaled_norms`).
        """
        self.same_bits, self.scaled = same_bits, scaled

    def attend(
        self, attention: Attention, qkv: Tensor, rotation: Rotation, context: Context
    ) -> Tensor:
        cache, mask = context.cache, context.mask
        fits = _fits(qkv) and qkv.shape[-1] in SIZES
        if not fits or mask is None or not isinstance(cache, CachePass):
            return super().attend(attention, qkv, rotation, context)
        seen = cache.seen(attention.layer)
        q = write_cache(attention, qkv, rotation, seen, cache.slots)
        return attend(q, *seen, mask, cache.ends, self.same_bits)

    def norm(self, norm: nn.Module, x: Tensor) -> Any:
        # a drafter's first block has no norm
        if _fits(x) and isinstance(norm, nn.RMSNorm):
            return add_norm(norm, x, scales=norm in self.scaled)[1]
        return super().norm(norm, x)

    def add_norm(self, norm: nn.Module, x: Tensor, y: Tensor | None) -> tuple[Tensor, Any]:
        if y is None:
            return x, self.norm(norm, x)
        if not (_fits(x) and _fits(y)):
            return super().add_norm(norm, x, y)
        return add_norm(norm, x, y, norm in self.scaled)

    def gate(self, mlp: MLP, gate_up: Tensor) -> Any:
        return gate(mlp, gate_up) if _fits(gate_up) else super().gate(mlp, gate_up)


def _fits(x: Tensor) -> bool:
    # the kernels have no backward pass
    return x.dtype == TYPE and x.is_contiguous() and not torch.is_grad_enabled()


def fits(blocks: Blocks) -> bool:
    """Return whether there are kernels for a network; GPT-2's steps are left to torch."""
    return blocks.blocks[0].mlp_norm.weight.dtype == TYPE and not blocks.spec.gpt2


def scaled_norms(blocks: Blocks) -> set[nn.Module]:
    """Return the norms of a network whose outputs only products in fp8 read."""
    return {
        norm
        for block in blocks.layers
        if isinstance(block.mlp.down, Fp8Linear) and not (block.swin or block.adds_to_normed)
        for norm in (block.attention_norm, block.mlp_norm)
    }


def build(blocks: Blocks, same_bits: bool) -> None:
    """Run every step once; raises what Triton does where it cannot compile a kernel."""
    spec, block = blocks.spec, blocks.blocks[0]
    zeros = partial(torch.zeros, dtype=TYPE, device=block.mlp_norm.weight.device)
    for n in (1, 17):  # both tiles of attention
        x = zeros(1, n, spec.hidden)
        add_norm(block.mlp_norm, x)
        add_norm(block.mlp_norm, x, x)
        gate(block.mlp, zeros(1, n, 2 * spec.intermediate))
        if isinstance(block.mlp.down, Fp8Linear):
            scale_rows(x)
            add_norm(block.mlp_norm, x, scales=True)
            add_norm(block.mlp_norm, x, x, scales=True)
        if (size := spec.head_dim) in SIZES:
            qkv, turn = zeros(1, n, spec.heads + 2 * spec.kv_heads, size), zeros(1, n, 1, size)
            keys, slots = zeros(1, spec.kv_heads, n, size), torch.arange(n, device=x.device)[None]
            q = write_cache(block.attention, qkv, (turn, turn), (keys, keys), slots)
            attend(q, keys, keys, zeros(1, 1, n, n), slots[:, -1] + 1, same_bits)


def add_norm(
    norm: nn.Module, x: Tensor, y: Tensor | None = None, scales: bool = False
) -> tuple[Tensor, Any]:
    """Return x + y, or x without y, and that normed; all (rows, n, hidden), contiguous.

    scales: whether what is normed is in fp8.
    """
    hidden = x.shape[-1]
    total = x if y is None else torch.empty_like(x)
    normed, *to = _empty(x, scales)
    _add_norm[(x.numel() // hidden,)](
        x, x if y is None else y, norm.weight, total, *to, hidden, norm.eps, ADDS=y is not None,
        SCALES=scales, WIDTH=triton.next_power_of_2(hidden), num_warps=8, **early(x.device),
    )  # fmt: skip
    return total, normed


def _empty(x: Tensor, scales: bool) -> tuple[Any, Tensor, Tensor]:
    """Return rows for a kernel to write, and the memory of their values and scales, if any."""
    if not scales:
        rows = x.new_empty(x.shape)
        return rows, rows, rows
    values = x.new_empty(x.shape, dtype=FP8)
    factors = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
    return ScaledRows(values, factors, x.dtype), values, factors


@triton.jit
def _store_row(to, scales, row, at, values, inside, SCALES: tl.constexpr):
    """Store a row, in fp8 with a scale of its own."""
    if SCALES:
        scale = tl.maximum(tl.max(tl.abs(values), 0), 1e-12) / 448.0
        tl.store(scales + row, scale)
        values = values / scale
    tl.store(to + at, values.to(to.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm(
    x, y, weight, total, normed, scales, hidden, eps, ADDS: tl.constexpr, SCALES: tl.constexpr,
    WIDTH: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    wait_for_inputs(EARLY)
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = channel < hidden
    at = row * hidden + channel
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        values += tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        # The norm reads the sum as it is stored.
        stored = values.to(total.dtype.element_ty)
        tl.store(total + at, stored, mask=inside)
        values = stored.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / hidden + eps)
    values *= scale * tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    values = values.to(x.dtype.element_ty).to(tl.float32)  # also before fp8
    _store_row(normed, scales, row, at, values, inside, SCALES)


def gate(mlp: MLP, gate_up: Tensor) -> Any:
    """Return the activation of the first half (rows, n, width) times the second.

    In fp8 if the product after it is; then a program has a whole row.
    """
    (rows, n, both), scales = gate_up.shape, isinstance(mlp.down, Fp8Linear)
    width = both // 2
    part = triton.next_power_of_2(width) if scales else _GATED
    gated, *to = _empty(gate_up[..., :width], scales)
    _gate[rows * n, triton.cdiv(width, part)](
        gate_up, *to, width, GELU=mlp.gelu, SCALES=scales, PART=part, num_warps=16 if scales else 4,
        **early(gate_up.device),
    )  # fmt: skip
    return gated


@triton.jit
def _gate(
    gate_up, out, scales, width, GELU: tl.constexpr, SCALES: tl.constexpr, PART: tl.constexpr,
    EARLY: tl.constexpr = False,
):  # fmt: skip
    wait_for_inputs(EARLY)
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = channel < width
    at = gate_up + token * 2 * width + channel
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    # GELU's approximation by tanh is also a sigmoid: 0.5 (1 + tanh z) = sigmoid(2 z).
    slope = 1.5957691216 * (1.0 + 0.044715 * x * x) if GELU else 1.0
    y = (x * tl.sigmoid(slope * x) * up).to(gate_up.dtype.element_ty).to(tl.float32)
    _store_row(out, scales, token, token * width + channel, y, inside, SCALES)


def scale_rows(x: Tensor) -> ScaledRows:
    """Return what `models.fp8.scale_rows` does, of contiguous rows (..., width)."""
    width = x.shape[-1]
    rows, *to = _empty(x, True)
    _scale_rows[(x.numel() // width,)](
        x, *to, width, WIDTH=triton.next_power_of_2(width), num_warps=8, **early(x.device)
    )
    return rows


@triton.jit
def _scale_rows(x, rows, scales, width, WIDTH: tl.constexpr, EARLY: tl.constexpr = False):
    wait_for_inputs(EARLY)
    row, channel = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = channel < width
    at = row * width + channel
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    _store_row(rows, scales, row, at, values, inside, True)


def write_cache(
    attention: Attention,
    qkv: Tensor,
    rotation: Rotation,
    cached: tuple[Tensor, Tensor],
    slots: Tensor,
) -> Tensor:
    """Return queries (rows, heads, n, head_dim), normed and rotated; cache keys and values.

    Args:
        attention: whose heads they are.
        qkv: as `BlockOps.attend` takes it, contiguous.
        rotation: of the tokens.
        cached: keys and values (rows, kv_heads, m, head_dim), which lie alike.
        slots: (rows, n) of them for the new ones.
    """
    (rows, n, _, size), norm, (cos, sin) = qkv.shape, attention.qk_norm, rotation
    heads, kv_heads = attention.heads, attention.kv_heads
    q = qkv.new_empty(rows, n, heads, size)
    # without a norm the kernel reads neither
    weight = cos if norm is None else norm.weight
    bias, centred = (norm.bias, True) if isinstance(norm, HeadNorm) else (weight, False)
    _write_cache[rows * n, triton.cdiv(heads + 2 * kv_heads, _HEADS)](
        qkv, q, *cached, weight, bias, cos, sin, slots, *cached[0].stride()[:3],
        *cos.stride()[:2], slots.stride(0), n, heads, kv_heads, getattr(norm, "eps", 0.0),
        NORMED=norm is not None, CENTRED=centred, PAIRS=attention.rotate is rotate_pairs,
        SIZE=size, HEADS=_HEADS, num_warps=1, **early(qkv.device),
    )  # fmt: skip
    return q.transpose(1, 2)


@triton.jit(**changing("n", "slots_row", addresses=("slots",)))
def _write_cache(
    qkv, q, keys, values, weight, bias, cos, sin, slots, to_row, to_head, to_slot, turn_row,
    turn_token, slots_row, n, heads, kv_heads, eps, NORMED: tl.constexpr, CENTRED: tl.constexpr,
    PAIRS: tl.constexpr, SIZE: tl.constexpr, HEADS: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    """Norm and rotate some heads of a token, and store each where it belongs."""
    wait_for_inputs(EARLY)
    token = tl.program_id(0).to(tl.int64)
    row, number = token // n, token % n
    head, channel = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None], tl.arange(0, SIZE)
    # queries, then keys, then values
    is_q, turns, there = head < heads, head < heads + kv_heads, head < heads + 2 * kv_heads
    partner = channel ^ 1 if PAIRS else (channel + SIZE // 2) % SIZE  # of a channel's rotation
    at = qkv + (token * (heads + 2 * kv_heads) + head) * SIZE
    raw = tl.load(at + channel, mask=there, other=0.0)
    x, y = raw.to(tl.float32), tl.load(at + partner, mask=turns, other=0.0).to(tl.float32)
    if CENTRED:
        mean = tl.sum(x, 1)[:, None] / SIZE
        x -= mean
        y -= mean
    if NORMED:
        scale = tl.rsqrt(tl.sum(x * x, 1)[:, None] / SIZE + eps)
        weight += head * SIZE
        x *= scale * tl.load(weight + channel, mask=turns, other=0.0).to(tl.float32)
        y *= scale * tl.load(weight + partner, mask=turns, other=0.0).to(tl.float32)
    if CENTRED:
        bias += head * SIZE
        x += tl.load(bias + channel, mask=turns, other=0.0).to(tl.float32)
        y += tl.load(bias + partner, mask=turns, other=0.0).to(tl.float32)
    turn = row * turn_row + number * turn_token + channel
    x = x * tl.load(cos + turn).to(tl.float32) + y * tl.load(sin + turn).to(tl.float32)
    x = x.to(q.dtype.element_ty)
    tl.store(q + (token * heads + head) * SIZE + channel, x, mask=is_q)
    to = row * to_row + tl.load(slots + row * slots_row + number) * to_slot + channel
    tl.store(keys + to + (head - heads) * to_head, x, mask=turns & (head >= heads))
    to_values = values + to + (head - heads - kv_heads) * to_head
    tl.store(to_values, raw, mask=there & (head >= heads + kv_heads))
