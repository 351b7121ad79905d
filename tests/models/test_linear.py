"""Products of a few tokens by slices of a weight."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.linear import Linear, order_weights

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch without MKL cuts no weight")


def linear_of(inputs: int = 12, outputs: int = 8, bias: bool = False, dtype: torch.dtype = torch.float64) -> Linear:
    torch.manual_seed(0)
    return Linear(inputs, outputs, bias=bias, dtype=dtype).requires_grad_(False)


def tokens(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (2,), (1, 1), (2, 1), (1, 3), (2, 13), (64,), (65,), (3, 50), (0,), (2, 0)])
def test_slices_multiply_as_the_whole_weight_does(shape, bias) -> None:
    linear, x = linear_of(bias=bias), tokens(*shape, 12)
    expected = F.linear(x, linear.weight.clone(), linear.bias)
    order_weights(linear)
    assert linear.by_input is not None and linear.by_output is not None
    found = linear(x)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=0, atol=1e-13)


def test_tokens_that_do_not_lie_in_one_run_of_memory() -> None:
    linear, x = linear_of(), tokens(12, 2, 2).permute(1, 2, 0)
    expected = F.linear(x, linear.weight.clone())
    order_weights(linear)
    assert torch.allclose(linear(x), expected, rtol=0, atol=1e-13)


def test_the_weight_keeps_its_numbers_and_the_slices_are_views_of_it() -> None:
    linear = linear_of()
    before = linear.weight.clone()
    order_weights(nn.Sequential(linear))
    assert torch.equal(linear.weight, before) and linear.weight.stride() == (1, 8)
    assert set(linear.state_dict()) == {"weight"}
    start = linear.weight.untyped_storage().data_ptr()
    assert all(part.untyped_storage().data_ptr() == start for part in (linear.by_input, linear.by_output))


@pytest.mark.parametrize(
    "inputs, outputs, dtype", [(12, 10, torch.float64), (11, 8, torch.float64), (12, 8, torch.bfloat16)]
)
def test_weights_that_cannot_be_cut_stay_whole(inputs, outputs, dtype) -> None:
    linear, x = linear_of(inputs, outputs, dtype=dtype), tokens(2, inputs, dtype=dtype)
    expected = linear(x)
    order_weights(linear)
    assert linear.by_input is None
    torch.testing.assert_close(linear(x), expected)


def test_a_module_that_changes_its_type_or_is_trained_multiplies_by_its_weight() -> None:
    linear, x = linear_of(), tokens(2, 12, dtype=torch.float32)
    order_weights(linear)
    linear.float().weight.data.zero_()
    assert linear.by_input is linear.by_output is None and not linear(x).any()
    trained = linear_of().requires_grad_()
    order_weights(trained)
    trained(tokens(2, 12)).sum().backward()
    assert trained.weight.grad.any()
    assert linear_of()(tokens(0, 12)).shape == (0, 8)


@pytest.mark.parametrize("count", [2, 5])
def test_the_gradient_flows_to_the_tokens(count) -> None:
    linear, x = linear_of(), tokens(count, 12).requires_grad_()
    order_weights(linear)
    linear(x).square().sum().backward()
    expected = 2 * F.linear(x.detach(), linear.weight) @ linear.weight
    assert torch.allclose(x.grad, expected, rtol=0, atol=1e-12)
