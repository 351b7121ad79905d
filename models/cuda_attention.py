"""Attention over a KV cache on a GPU, by kernels of Triton.

A captured round has room for a whole image, and torch's kernels read all of it. These end with the
tokens that an image has, and share a row's keys among several programs: a tree has few queries, so
that one program for each head would leave half of a GPU idle.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.base import Context
from models.transformer import Attention, Heads, attend_by_torch

TYPE = torch.bfloat16  # fp32 and fp64 are for comparing, by torch's kernels; there is no fp16
SIZES = (64, 128, 256)  # of a head
_PROGRAMS = 256  # about twice as many as a GPU has multiprocessors
_MOST_PARTS = 8
_KEYS = 64  # that a program reads at once


def attend_by_triton(attention: Attention, heads: Heads, context: Context) -> Tensor:
    """Keep new keys and values, and return what the new tokens read, (rows, heads, n, head_dim).

    Other types, heads that no tile fits, and passes without a `SlotCache`, as those of training,
    are left to torch.
    """
    (q, k, v), cache = heads, context.cache
    if q.dtype != TYPE or q.shape[-1] not in SIZES or not hasattr(cache, "seen"):
        return attend_by_torch(attention, heads, context)
    keys, values = cache.seen(attention.layer)
    write(keys, values, k, v, cache.slots)
    return attend(q, keys, values, context.mask, cache.ends)


def build(size: int, device: torch.device) -> None:
    """Compile the kernels for heads of this size, if a tile fits them; raises what Triton does."""
    if size not in SIZES:
        return
    for n in (1, 17):  # both tiles
        keys = torch.zeros(1, 1, n, size, dtype=TYPE, device=device)
        slots = torch.arange(n, device=device)[None]
        write(keys, keys, keys, keys, slots)
        attend(keys, keys, keys, keys.new_zeros(1, 1, n, n), slots[:, -1] + 1)


def write(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Copy k and v (rows, heads, n, head_dim) to slots (rows, n) of (rows, heads, m, head_dim).

    As in `attend`, the last dimension of all is contiguous, and keys and values lie alike.
    """
    rows, heads, n, size = k.shape
    _write[rows * n, heads](
        keys, values, k, v, slots, *keys.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        slots.stride(0), n, SIZE=size, num_warps=1,
    )  # fmt: skip


# Numbers and addresses that differ from prompt to prompt, for which nothing is compiled anew.
_CHANGING = {
    "do_not_specialize": ["n", "slots_row", "mask_row", "ends_row"],
    "do_not_specialize_on_alignment": ["slots", "ends"],
}


@triton.jit(**_CHANGING)
def _write(
    keys, values, k, v, slots, to_row, to_head, to_slot, k_row, k_head, k_token, v_row, v_head,
    v_token, slots_row, n, SIZE: tl.constexpr,
):  # fmt: skip
    row, token, head = (tl.program_id(0) // n).to(tl.int64), tl.program_id(0) % n, tl.program_id(1)
    channel = tl.arange(0, SIZE)
    slot = tl.load(slots + row * slots_row + token)
    to = row * to_row + head * to_head + slot * to_slot + channel
    tl.store(keys + to, tl.load(k + row * k_row + head * k_head + token * k_token + channel))
    tl.store(values + to, tl.load(v + row * v_row + head * v_head + token * v_token + channel))


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, ends: Tensor) -> Tensor:
    """Return the attention (rows, heads, n, head_dim) of queries q of that shape.

    Args:
        keys, values: (rows, kv_heads, m, head_dim); neighbouring heads of queries share them.
        mask: broadcastable to (rows, 1, n, m), added to scores; where heads share keys it may be
            repeated along n for each of them.
        ends: (rows,) slots that are read.
    """
    (rows, heads, n, size), kv_heads = q.shape, keys.shape[1]
    mask = mask.expand(rows, -1, -1, -1)
    groups = heads // kv_heads
    queries = groups * n
    # Tensor cores multiply 16 rows at once, so Triton would pad a smaller tile.
    tile = 16 if queries <= 16 else 64
    programs = rows * kv_heads * triton.cdiv(queries, tile)
    # A power of two: PARTS is compiled in, so every other value would be one more kernel.
    parts = min(_MOST_PARTS, triton.next_power_of_2(triton.cdiv(_PROGRAMS, programs)))
    sums = q.new_empty((parts, rows, kv_heads, queries, size), dtype=torch.float32)
    # [0] greatest scores, [1] sums of exponentials
    marks = q.new_empty((2, parts, rows, kv_heads, queries), dtype=torch.float32)
    # Tokens before heads in memory, so that `Attention.join` flattens heads without a copy.
    read = q.new_empty((rows, n, heads, size)).transpose(1, 2)
    # A mask of a single row gets the stride 0: all queries read it.
    _attend[rows * kv_heads, triton.cdiv(queries, tile), parts](
        q, keys, values, mask, ends, sums, marks, *q.stride()[:3], *keys.stride()[:3],
        mask.stride(0), mask.stride(2) if mask.shape[2] > 1 else 0, ends.stride(0),
        n, kv_heads, groups, size**-0.5, SIZE=size, TILE=tile, PARTS=parts,
        KEYS=_KEYS if size < 256 else _KEYS // 2, num_warps=4, num_stages=2,
    )  # fmt: skip
    _join[rows * kv_heads, triton.cdiv(queries, 16)](
        sums, marks, read, *read.stride()[:3], n, kv_heads, groups, SIZE=size, TILE=16, PARTS=parts
    )
    return read


@triton.jit(**_CHANGING)
def _attend(
    q, keys, values, mask, ends, sums, marks, q_row, q_head, q_token, kv_row, kv_head, kv_slot,
    mask_row, mask_token, ends_row, n, kv_heads, groups, scale, KEYS: tl.constexpr,
    SIZE: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Sum up a part of the keys: exponentials times values, their sum, and the greatest score."""
    pair, part = tl.program_id(0), tl.program_id(2)
    # int64: offsets into a cache of many rows may not fit into 32 bits.
    row, kv = (pair // kv_heads).to(tl.int64), pair % kv_heads
    # Read here, since a replayed graph keeps its arguments while images grow.
    end = tl.load(ends + row * ends_row).to(tl.int32)
    share = tl.cdiv(end, PARTS * KEYS) * KEYS
    # Parts behind the end read nothing, and `_join` gives them the weight exp(-inf).
    begin, stop = part * share, tl.minimum((part + 1) * share, end)
    channel, step = tl.arange(0, SIZE), tl.arange(0, KEYS)
    query = tl.program_id(1) * TILE + tl.arange(0, TILE)  # all tokens of a head, then the next head
    token, head, there = query % n, kv * groups + query // n, query < groups * n
    at = row * q_row + head * q_head + token * q_token
    x = tl.load(q + at[:, None] + channel, mask=there[:, None], other=0.0)
    keys += row * kv_row + kv * kv_head
    values += row * kv_row + kv * kv_head
    mask += row * mask_row + token[:, None] * mask_token
    most = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    seen = tl.zeros([TILE, SIZE], tl.float32)
    for first in range(begin, stop, KEYS):
        slot = first + step
        inside = slot < stop
        k = tl.load(keys + slot[None] * kv_slot + channel[:, None], mask=inside[None], other=0.0)
        v = tl.load(values + slot[:, None] * kv_slot + channel, mask=inside[:, None], other=0.0)
        added = tl.load(mask + slot, mask=there[:, None] & inside, other=float("-inf"))
        scores = tl.dot(x, k) * scale + added
        higher = tl.maximum(most, tl.max(scores, 1))
        # Until a query has seen a key, -inf - -inf would be NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp(scores - shift[:, None])
        decay = tl.exp(most - shift)
        total = total * decay + tl.sum(shares, 1)
        # tl.dot takes two factors of one type; its sums stay in fp32.
        seen = seen * decay[:, None] + tl.dot(shares.to(v.dtype), v)
        most = higher
    place = (part * tl.num_programs(0) + pair) * groups * n + query
    tl.store(sums + place[:, None] * SIZE + channel, seen, mask=there[:, None])
    tl.store(marks + place, most, mask=there)
    tl.store(marks + PARTS * tl.num_programs(0) * groups * n + place, total, mask=there)


@triton.jit(**_CHANGING)
def _join(
    sums, marks, read, to_row, to_head, to_token, n, kv_heads, groups, SIZE: tl.constexpr,
    TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Add up the parts of a tile, each by its greatest score."""
    pair, channel = tl.program_id(0), tl.arange(0, SIZE)
    row, kv = (pair // kv_heads).to(tl.int64), pair % kv_heads
    query = tl.program_id(1) * TILE + tl.arange(0, TILE)
    token, head, there = query % n, kv * groups + query // n, query < groups * n
    apart = tl.num_programs(0) * groups * n
    place = pair * groups * n + query
    most = tl.full([TILE], float("-inf"), tl.float32)
    for part in tl.static_range(PARTS):
        most = tl.maximum(most, tl.load(marks + part * apart + place, mask=there, other=0.0))
    most = tl.where(most == float("-inf"), 0.0, most)  # of a query that sees nothing, and reads 0
    total = tl.zeros([TILE], tl.float32)
    seen = tl.zeros([TILE, SIZE], tl.float32)
    for part in tl.static_range(PARTS):
        weight = tl.exp(tl.load(marks + part * apart + place, mask=there, other=0.0) - most)
        total += weight * tl.load(marks + (PARTS + part) * apart + place, mask=there, other=1.0)
        at = (part * apart + place)[:, None] * SIZE + channel
        seen += weight[:, None] * tl.load(sums + at, mask=there[:, None], other=0.0)
    to = row * to_row + head * to_head + token * to_token
    y = (seen / tl.where(total == 0, 1.0, total)[:, None]).to(read.dtype.element_ty)
    tl.store(read + to[:, None] + channel, y, mask=there[:, None])
