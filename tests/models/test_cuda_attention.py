"""The GPU's attention kernels, run by Triton's interpreter, equal torch's attention."""

import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small import randomised
from torch import Tensor

from decoding.cache import CacheShape, CacheView, KVCache
from drafters.training.rows import Joined
from models.base import Context, TransformerSpec
from models.transformer import Transformer, attend_by_torch

kernels = pytest.importorskip("models.cuda_attention", reason="needs Triton, torch's on Linux")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="with a GPU, scripts/gpu/check.sh runs them"
)
# The interpreter multiplies bf16 as if it were integers.
HALF = torch.float16
SIZES = {  # heads, kv_heads, head_dim, new tokens, committed tokens
    "one token": (4, 4, 64, 1, 190),
    "a tree": (2, 2, 128, 59, 230),
    "heads that share keys": (4, 2, 64, 17, 30),
    "one key head, and one token": (8, 1, 64, 1, 70),
    "wide heads": (2, 2, 256, 5, 90),
}


def network(heads: int, kv_heads: int, size: int) -> Transformer:
    spec = TransformerSpec(
        vocab=40, hidden=heads * size, intermediate=64, layers=1, heads=heads, kv_heads=kv_heads,
        max_positions=512,
    )  # fmt: skip
    return randomised(Transformer(spec, 10), 0).to(HALF).requires_grad_(False)


def cache_of(model: Transformer) -> KVCache:
    """Two images of two rows; the second row begins three slots later."""
    cache = KVCache(model.spec, CacheShape(2, 2, 400), HALF, torch.device("cpu"))
    cache.memory[0].normal_(generator=torch.Generator().manual_seed(1))
    cache.padding[1::2, :3] = -torch.inf
    return cache


def read(model: Transformer, n: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Features of n tokens of random trees after so many committed ones, and what is cached."""
    cache, random = cache_of(model), torch.Generator().manual_seed(2)
    x = torch.randn(4, n, model.spec.hidden, generator=random).to(HALF)
    visible = torch.rand(2, n, n, generator=random) < 0.5
    visible |= torch.eye(n, dtype=torch.bool)
    depths = torch.arange(n).expand(2, -1)
    context = CacheView(cache, lengths, 300, n).open(depths, visible)
    return model.blocks(x, context), cache.memory[0]


@pytest.mark.parametrize("size", SIZES)
def test_reads_and_keeps_what_torch_does(size, monkeypatch) -> None:
    heads, kv_heads, head_dim, n, length = SIZES[size]
    model, lengths = network(heads, kv_heads, head_dim), torch.tensor([length, length - 20])
    wanted, kept = read(model, n, lengths)
    # fp16 stands for bf16, the only type that is not left to torch
    monkeypatch.setattr(kernels, "TYPE", HALF)
    model.blocks.blocks[0].attention.attend = kernels.attend_by_triton
    found, written = read(model, n, lengths)
    assert torch.equal(written, kept)
    assert (found - wanted).abs().max() < 4e-3 * wanted.abs().max()


def test_ends_with_the_tokens_that_an_image_has() -> None:
    """Slots behind them are not read, whatever the mask says of them."""
    random = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(2, 2, 80, 64, generator=random).to(HALF) for _ in range(3))
    mask = torch.zeros(2, 1, 1, 80, dtype=HALF)
    found = kernels.attend(q[:, :, :3], keys, values, mask, torch.tensor([50, 70]))
    keys[0, :, 50:] = values[0, :, 50:] = torch.nan
    assert torch.equal(
        kernels.attend(q[:, :, :3], keys, values, mask, torch.tensor([50, 70])), found
    )
    wanted = F.scaled_dot_product_attention(q[:1, :, :3], keys[:1, :, :50], values[:1, :, :50])
    assert (found[:1] - wanted).abs().max() < 4e-3


@pytest.mark.parametrize("cache", [None, Joined()], ids=["none", "training's"])
def test_leaves_passes_without_slots_to_torch(cache, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "TYPE", HALF)
    model = network(2, 2, 64)
    attention = model.blocks.blocks[0].attention
    x = torch.randn(1, 4, model.spec.hidden).to(HALF)
    rotation = model.blocks.rotary(torch.arange(4)[None], HALF)
    heads, context = attention.project(x, rotation), Context(torch.arange(4)[None], None, cache)
    wanted = attend_by_torch(attention, heads, replace(context, cache=None))
    mask = torch.full((4, 4), -torch.inf, dtype=HALF).triu(1)[None, None]
    found = kernels.attend_by_triton(attention, heads, replace(context, mask=cache and mask))
    assert (found - wanted).abs().max() < 4e-3


@pytest.mark.parametrize("rows", [slice(0, 2), slice(1, None, 2)], ids=["prompt", "in turn"])
def test_reads_prompts_and_guidance_rows_in_turn(rows, monkeypatch) -> None:
    """A prompt's slots are the same in all rows; one row of two has its own strides."""
    monkeypatch.setattr(kernels, "TYPE", HALF)
    model = network(2, 1, 64)
    x = torch.randn(2, 70, model.spec.hidden, generator=torch.Generator().manual_seed(3)).to(HALF)
    found, written = [], []
    for attend in (attend_by_torch, kernels.attend_by_triton):
        model.blocks.blocks[0].attention.attend = attend
        cache = cache_of(model)
        context = cache.prefill(1, 70, torch.tensor([0, 3]))
        if rows.step:
            part = context.cache.part(rows)
            context = Context(context.positions[rows], context.mask[rows], part)
        found.append(model.blocks(x[rows], context))
        written.append(cache.memory[0])
    assert torch.equal(*written)
    assert (found[0] - found[1]).abs().max() < 4e-3 * found[0].abs().max()


def test_a_query_that_sees_nothing_reads_zeros() -> None:
    q = torch.ones(1, 1, 2, 64, dtype=HALF)
    mask = torch.tensor([[[[0.0] * 5, [-torch.inf] * 5]]], dtype=HALF)
    keys = torch.ones(1, 1, 5, 64, dtype=HALF)
    read = kernels.attend(q, keys, keys, mask, torch.tensor([5]))
    assert read[0, 0].tolist() == [[1.0] * 64, [0.0] * 64]


def never(*_args: object) -> Tensor:
    raise AssertionError("torch has to run this")


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 64), (HALF, 96)])
def test_leaves_other_types_and_sizes_to_torch(dtype, size, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "TYPE", HALF)
    monkeypatch.setattr(kernels, "attend", never)
    attention = network(2, 2, size).to(dtype).blocks.blocks[0].attention
    q = k = v = torch.ones(1, 2, 3, size, dtype=dtype)
    cache = KVCache(network(2, 2, size).spec, CacheShape(1, 1, 8), dtype, torch.device("cpu"))
    context = cache.prefill(0, 3, torch.tensor([0]))
    assert (kernels.attend_by_triton(attention, (q, k, v), context) == 1).all()


def test_kernels_are_built_before_the_first_pass_where_a_tile_fits(monkeypatch) -> None:
    kernels.build(64, torch.device("cpu"))
    monkeypatch.setattr(kernels, "attend", never)
    kernels.build(96, torch.device("cpu"))
    with pytest.raises(AssertionError, match="torch has to run this"):
        kernels.build(64, torch.device("cpu"))
