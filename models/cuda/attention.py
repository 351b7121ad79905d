"""Attention over a KV cache on a GPU, by kernels of Triton.

A captured round has room for a whole image, and torch's kernels read all of it. These end with the
tokens that an image has, and share a row's keys among several programs: a tree has few queries, so
that one program for each head would leave half of a GPU idle.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda as gdc

SIZES = (64, 128, 256)  # of a head
_PROGRAMS = 256  # about twice as many as a GPU has multiprocessors
_MOST_PARTS = 8
_KEYS = 64  # that a program reads at once
_SHARE = 256  # of the first eight parts with `same_bits`; later ones have as many as all of these


def changing(*numbers: str, addresses: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Name arguments that differ from prompt to prompt, which do not cause another compilation."""
    return {"do_not_specialize": [*numbers], "do_not_specialize_on_alignment": [*addresses]}


@cache
def early(device: torch.device) -> dict[str, bool]:
    """Return how to launch a kernel: on Hopper and later, before the one in front of it has ended.

    That hides the time between two small kernels (programmatic dependent launch).
    """
    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if able and hasattr(gdc, "gdc_wait") else {}


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr):
    """Wait for the kernel in front, before anything is read or written; then let the next begin."""
    if EARLY:
        gdc.gdc_wait()
        gdc.gdc_launch_dependents()


def attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, ends: Tensor, same_bits: bool = False
) -> Tensor:
    """Return the attention (rows, heads, n, head_dim) of queries q of that shape.

    Args:
        keys, values: (rows, kv_heads, m, head_dim); neighbouring heads of queries share them.
        mask: broadcastable to (rows, 1, n, m), added to scores; where heads share keys it may be
            repeated along n for each of them.
        ends: (rows,) slots that are read.
        same_bits: of a query whose keys stand in their order, however many others there are. Tiles
            are of one size, and a part has the same slots whatever an image's length.
    """
    (rows, heads, n, size), kv_heads = q.shape, keys.shape[1]
    mask = mask.expand(rows, -1, -1, -1)
    groups = heads // kv_heads
    queries = groups * n
    # Tensor cores multiply 16 rows at once, so Triton would pad a smaller tile.
    tile = 16 if queries <= 16 and not same_bits else 64
    programs = rows * kv_heads * triton.cdiv(queries, tile)
    # A power of two: PARTS is compiled in, so every other value would be one more kernel.
    parts = min(_MOST_PARTS, triton.next_power_of_2(triton.cdiv(_PROGRAMS, programs)))
    if same_bits:
        parts = min(triton.cdiv(keys.shape[2], _SHARE), 7 + triton.cdiv(keys.shape[2], 8 * _SHARE))
    sums = q.new_empty((parts, rows, kv_heads, queries, size), dtype=torch.float32)
    # [0] greatest scores, [1] sums of exponentials
    marks = q.new_empty((2, parts, rows, kv_heads, queries), dtype=torch.float32)
    # Tokens before heads in memory, so that `Attention.run` flattens heads without a copy.
    read = q.new_empty((rows, n, heads, size)).transpose(1, 2)
    # A mask of a single row gets the stride 0: all queries read it.
    _attend[rows * kv_heads, triton.cdiv(queries, tile), parts](
        q, keys, values, mask, ends, sums, marks, *q.stride()[:3], *keys.stride()[:3],
        mask.stride(0), mask.stride(2) if mask.shape[2] > 1 else 0, ends.stride(0),
        n, kv_heads, groups, size**-0.5, SIZE=size, TILE=tile, PARTS=parts,
        KEYS=_KEYS if size < 256 else _KEYS // 2, SHARE=_SHARE if same_bits else 0,
        num_warps=4, num_stages=2, **early(q.device),
    )  # fmt: skip
    _join[rows * kv_heads, triton.cdiv(queries, 16)](
        sums,
        marks,
        read,
        *read.stride()[:3],
        n,
        kv_heads,
        groups,
        SIZE=size,
        TILE=16,
        PARTS=parts,
        **early(q.device),
    )
    return read


@triton.jit
def _begin(part, end, PARTS: tl.constexpr, KEYS: tl.constexpr, SHARE: tl.constexpr):
    """Return the first key of a part."""
    if SHARE:
        return tl.where(part < 8, part, 8 * (part - 7)) * SHARE
    return part * tl.cdiv(end, PARTS * KEYS) * KEYS


@triton.jit(**changing("n", "mask_row", "ends_row", addresses=("ends",)))
def _attend(
    q, keys, values, mask, ends, sums, marks, q_row, q_head, q_token, kv_row, kv_head, kv_slot,
    mask_row, mask_token, ends_row, n, kv_heads, groups, scale, KEYS: tl.constexpr,
    SIZE: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, SHARE: tl.constexpr,
    EARLY: tl.constexpr = False,
):  # fmt: skip
    """Sum up a part of the keys: exponentials times values, their sum, and the greatest score."""
    wait_for_inputs(EARLY)
    pair, part = tl.program_id(0), tl.program_id(2)
    # int64: offsets into a cache of many rows may not fit into 32 bits.
    row, kv = (pair // kv_heads).to(tl.int64), pair % kv_heads
    # Read here, since a replayed graph keeps its arguments while images grow.
    end = tl.load(ends + row * ends_row).to(tl.int32)
    # Parts behind the end read nothing, and `_join` gives them the weight exp(-inf).
    begin = _begin(part, end, PARTS, KEYS, SHARE)
    stop = tl.minimum(_begin(part + 1, end, PARTS, KEYS, SHARE), end)
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


@triton.jit(**changing("n"))
def _join(
    sums, marks, read, to_row, to_head, to_token, n, kv_heads, groups, SIZE: tl.constexpr,
    TILE: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    """Add up the parts of a tile, each by its greatest score."""
    wait_for_inputs(EARLY)
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
