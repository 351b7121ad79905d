"""Products by packed copies of weights."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from compilers import needs_compiler
from torch import Tensor, nn

from models import linear as module
from models.linear import (
    Linear,
    can_pack,
    forget_packed,
    pack_natively,
    pack_weights,
    packed_dtypes,
)

pytestmark = pytest.mark.skipif(not can_pack(), reason="this torch packs no weight")


def linear_of(bias: bool = False, dtype: torch.dtype = torch.float32) -> Linear:
    torch.manual_seed(0)
    return Linear(12, 8, bias=bias, dtype=dtype).requires_grad_(False)


def tokens(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(), (1,), (2,), (1, 1), (2, 1), (1, 3), (2, 13), (64,), (3, 50), (0,), (2, 0)]
)
def test_packed_weights_multiply_as_they_do_unpacked(shape, bias) -> None:
    linear, x = linear_of(bias), tokens(*shape, 12)
    expected = F.linear(x, linear.weight, linear.bias)
    pack_weights(nn.Sequential(linear))
    assert linear.packed is not None
    assert (
        torch.allclose(linear(x), expected, rtol=0, atol=1e-5) and linear(x).shape == expected.shape
    )


@pytest.mark.skipif(torch.bfloat16 not in packed_dtypes(), reason="no product in bf16 here")
@pytest.mark.parametrize("shape", [(2, 1), (2, 13), (64,), (0,)])
def test_so_they_do_in_bf16_where_the_cpu_multiplies_it(shape) -> None:
    linear, x = linear_of(dtype=torch.bfloat16), tokens(*shape, 12, dtype=torch.bfloat16)
    expected = F.linear(x.float(), linear.weight.float())
    pack_weights(linear)
    assert linear.packed is not None and linear(x).dtype == torch.bfloat16
    assert torch.allclose(linear(x).float(), expected, rtol=0.01, atol=0.01)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("outputs", [1, 8, 16, 17, 33, 96, 100])
def test_compiled_kernels_multiply_as_torch_does(outputs, dtype) -> None:
    near = 0.02 if dtype == torch.bfloat16 else 1e-5
    linear = Linear(12, outputs, dtype=dtype).requires_grad_(False)
    pack_natively(linear)
    for shape in ((), (1,), (2, 13), (3, 50), (0,), (2, 0)):
        x = tokens(*shape, 12, dtype=dtype)
        expected = F.linear(x, linear.weight, linear.bias)
        assert torch.allclose(linear(x), expected, rtol=near, atol=near)
        assert linear(x).shape == expected.shape
    x = tokens(12, 2, 2, dtype=dtype).permute(1, 2, 0)
    assert torch.allclose(linear(x), F.linear(x, linear.weight, linear.bias), rtol=near, atol=near)


@needs_compiler
def test_compiled_kernels_read_a_copy_until_weights_change() -> None:
    linear, x = linear_of(), tokens(3, 12)
    pack_natively(linear)
    first = linear.packed
    linear.weight.mul_(2)
    pack_weights(linear)
    assert linear.packed is not first and torch.allclose(
        linear(x), F.linear(x, linear.weight), rtol=0, atol=1e-5
    )
    for wrong in (tokens(3, 11), tokens(3, 12, dtype=torch.float64)):
        with pytest.raises(RuntimeError):  # as torch does
            linear(wrong)
    odd = Linear(11, 8, bias=False).requires_grad_(False)  # bfloat16 is read in pairs
    pack_natively(odd)
    assert odd.packed is None and odd(tokens(3, 11)).shape == (3, 8)


def test_tokens_that_do_not_lie_in_one_run_of_memory() -> None:
    linear, x = linear_of(), tokens(12, 2, 2).permute(1, 2, 0)
    pack_weights(linear)
    assert torch.allclose(linear(x), F.linear(x, linear.weight), rtol=0, atol=1e-5)


def test_the_weight_stays_as_it_is() -> None:
    linear = linear_of()
    before = linear.weight.clone()
    pack_weights(linear)
    assert torch.equal(linear.weight, before) and set(linear.state_dict()) == {"weight"}


def test_weights_of_other_types_in_training_or_too_large_are_not_packed(monkeypatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", bool, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", bool, raising=False)
    others = [linear_of(dtype=dtype) for dtype in (torch.float64, torch.bfloat16)]
    for linear in (*others, linear_of().requires_grad_()):
        pack_weights(linear)
        assert linear.packed is None
        assert linear(tokens(2, 12, dtype=linear.weight.dtype)).shape == (2, 8)
    monkeypatch.setattr(module, "_MOST", 95)
    large = linear_of()
    pack_weights(large)
    assert large.packed is None


@pytest.mark.parametrize(
    "forget", [forget_packed, lambda linear: linear.to(torch.float64).to(torch.float32)]
)
def test_copies_are_dropped_before_weights_change(forget) -> None:
    linear = linear_of()
    pack_weights(linear)
    forget(linear)
    linear.weight.data.zero_()
    assert not linear(tokens(2, 12)).any()


def test_weights_that_are_loaded_count() -> None:
    linear = linear_of()
    pack_weights(linear)
    linear.load_state_dict({"weight": torch.zeros(8, 12)})
    assert not linear(tokens(2, 12)).any()


def test_a_packed_layer_can_be_copied() -> None:
    linear, x = linear_of(), tokens(2, 12)
    pack_weights(linear)
    other = deepcopy(linear)
    assert linear.packed is not None and torch.allclose(other(x), linear(x), rtol=0, atol=1e-5)


def test_autocast_rounds_as_it_does_unpacked() -> None:
    linear, x = linear_of(), tokens(5, 12)
    with torch.autocast("cpu", torch.bfloat16):
        expected = linear(x)
        pack_weights(linear)
        found = linear(x)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)


def test_the_gradient_flows_to_the_tokens() -> None:
    linear, x = linear_of(), tokens(5, 12).requires_grad_()
    pack_weights(linear)
    linear(x).square().sum().backward()
    expected = 2 * F.linear(x.detach(), linear.weight) @ linear.weight
    assert torch.allclose(x.grad, expected, rtol=0, atol=1e-4)


def test_the_gradient_flows_to_a_weight_that_is_trained_after_packing() -> None:
    linear, x = linear_of(), tokens(5, 12)
    pack_weights(linear)
    linear.requires_grad_(True)(x).sum().backward()
    assert torch.allclose(linear.weight.grad, x.sum(0).expand(8, -1), rtol=0, atol=1e-5)
