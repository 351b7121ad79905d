"""The transformer by itself: causality, rotation, grouped keys, norms, precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from counted import CountedCache
from small import randomised
from torch import Tensor

from decoding.cache import CacheShape
from models.base import Context, TransformerSpec
from models.rotary import Rotary, rotate
from models.transformer import HeadNorm, RMSNorm, Transformer

SPEC = TransformerSpec(
    vocab=40, hidden=32, intermediate=48, layers=2, heads=4, kv_heads=4, max_positions=32
)


def model_of(spec: TransformerSpec = SPEC, dtype: torch.dtype = torch.float64) -> Transformer:
    return randomised(Transformer(spec, 10), 0).to(dtype)


def run(model: Transformer, ids: Tensor) -> Tensor:
    return model(ids, Context(torch.arange(ids.shape[1]).expand_as(ids)))


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(40, (2, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "change", [{}, {"swin_norm": True}, {"qk_norm": False}, {"kv_heads": 2}, {"first_norm": False}]
)
def test_a_token_sees_itself_and_the_past(change, ids) -> None:
    model = model_of(replace(SPEC, **change))
    features = run(model, ids)
    later = ids.clone()
    later[:, 5] += 1 - 2 * (later[:, 5] == 39)
    changed = run(model, later)
    assert torch.equal(features[:, :5], changed[:, :5])
    assert ((features - changed).abs().amax(-1)[:, 5:] > 1e-6).all()


@pytest.mark.parametrize("change", [{}, {"swin_norm": True}, {"kv_heads": 2}, {"qk_norm": False}])
def test_token_by_token_with_a_cache_equals_one_pass(change, ids) -> None:
    spec = replace(SPEC, **change)
    model = model_of(spec)
    cache = CountedCache(spec, CacheShape(2, 1, 16), torch.float64, ids.device)
    cache.begin(torch.zeros(2, dtype=torch.long))
    parts = []
    for n in (4, 1, 1, 3):
        start = sum(part.shape[1] for part in parts)
        parts.append(model(ids[:, start : start + n], cache.chain(n)))
        cache.advance([n, n])
    torch.testing.assert_close(torch.cat(parts, 1), run(model, ids), rtol=0, atol=1e-12)


def test_grouped_keys_equal_repeated_keys(ids) -> None:
    grouped = model_of(replace(SPEC, kv_heads=2))
    full = model_of(SPEC)
    state = grouped.state_dict()
    for name, value in state.items():
        if "qkv" in name or "qk_norm" in name:
            heads = value.unflatten(0, (-1, 8)) if "qkv" in name else value.unsqueeze(1)
            q, k, v = heads[:4], heads[4:6], heads[6:]  # v is empty for the norms
            repeated = [part.repeat_interleave(2, 0) for part in (k, v)]
            state[name] = torch.cat([q, *repeated]).flatten(0, 1)
    full.load_state_dict(state)
    torch.testing.assert_close(run(grouped, ids), run(full, ids), rtol=0, atol=1e-12)


def test_rotation_depends_on_the_distance_only() -> None:
    rotary = Rotary(8, 64, 10000.0)
    q, k = torch.randn(
        2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )

    def product(i: int, j: int) -> Tensor:
        return (
            rotate(q, *rotary(torch.tensor([[i]]), q.dtype))
            * rotate(k, *rotary(torch.tensor([[j]]), q.dtype))
        ).sum()

    assert torch.allclose(product(3, 1), product(42, 40), atol=1e-6)
    assert not torch.allclose(product(3, 1), product(3, 2), atol=1e-3)


def test_rotation_stays_in_fp32_when_the_model_is_rounded(ids) -> None:
    """.to(bf16) on a buffer of angles would turn position 300 into 300 +- 1."""
    model = model_of(replace(SPEC, max_positions=512)).to(torch.bfloat16)
    cos, _ = model.blocks.rotary(torch.tensor([[301]]), torch.float32)
    assert cos[0, 0, 0, 0] == torch.tensor(301.0).cos()
    assert run(model, ids).dtype == torch.bfloat16


def test_head_norm_has_one_weight_per_head() -> None:
    norm = HeadNorm(2, 4)
    norm.weight.data[1], norm.bias.data[1] = 3.0, 1.0
    x = torch.randn(1, 1, 2, 4, generator=torch.Generator().manual_seed(3))
    plain = torch.nn.functional.layer_norm(x, (4,), eps=1e-5)
    torch.testing.assert_close(norm(x), torch.stack([plain[:, :, 0], plain[:, :, 1] * 3 + 1], 2))


def test_bfloat16_is_near_and_scores_only_what_is_scored(ids) -> None:
    exact, rounded = model_of(), model_of(dtype=torch.bfloat16)
    found = rounded.score(run(rounded, ids))
    assert found.shape == (2, 9, 10)
    assert (found.double() - exact.score(run(exact, ids))).abs().max() < 0.3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_is_that_of_torch(dtype) -> None:
    norm = RMSNorm(48, 1e-3).to(dtype)
    norm.weight.data.uniform_(0.5, 2)
    x = torch.randn(3, 5, 48, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    found, expected = norm(x), F.rms_norm(x, (48,), norm.weight, 1e-3)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert torch.equal(norm(torch.zeros(1, 48, dtype=dtype)), torch.zeros(1, 48, dtype=dtype))
