"""The GPU's attention kernels, run by Triton's interpreter, equal torch's attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small import randomised
from torch import Tensor

from decoding.cache import CacheShape, KVCache
from models.base import TransformerSpec
from models.transformer import Attention, Transformer

kernels = pytest.importorskip("models.cuda_attention", reason="needs Triton, torch's on Linux")
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
    context = cache.view(lengths, 300, n).open(depths, visible)
    return model.blocks(x, context), cache.memory[0]


@pytest.mark.parametrize("size", SIZES)
def test_reads_and_keeps_what_torch_does(size, monkeypatch) -> None:
    heads, kv_heads, head_dim, n, length = SIZES[size]
    model, lengths = network(heads, kv_heads, head_dim), torch.tensor([length, length - 20])
    wanted, kept = read(model, n, lengths)
    # fp16 stands for bf16, the only type that is not left to torch
    monkeypatch.setattr(kernels, "TYPES", (HALF,))
    model.blocks.blocks[0].attention.attend = kernels.attend_by_triton
    found, written = read(model, n, lengths)
    assert torch.equal(written, kept)
    assert found.shape == wanted.shape
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


def test_leaves_other_types_to_torch() -> None:
    model, lengths = network(2, 2, 64), torch.tensor([60, 30])
    wanted, _ = read(model, 5, lengths)
    attention: Attention = model.blocks.blocks[0].attention
    attention.attend = kernels.attend_by_triton
    assert torch.equal(read(model, 5, lengths)[0], wanted)
