"""Products by packed copies of weights."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from compilers import needs_compiler
from torch import Tensor

from models.cpu.linear import Linear, forget_packed, pack_weights

pytestmark = needs_compiler


def linear_of(bias: bool = False, dtype: torch.dtype = torch.float32) -> Linear:
    torch.manual_seed(0)
    return Linear(12, 8, bias=bias, dtype=dtype).requires_grad_(False)


def tokens(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [1, 8, 16, 17, 33, 96, 100])
def test_compiled_kernels_multiply_as_torch_does(outputs, bias, dtype) -> None:
    near = 0.02 if dtype == torch.bfloat16 else 1e-5
    linear = Linear(12, outputs, bias=bias, dtype=dtype).requires_grad_(False)
    pack_weights(linear)
    for shape in ((), (1,), (2, 13), (3, 50), (0,), (2, 0)):
        x = tokens(*shape, 12, dtype=dtype)
        expected = F.linear(x, linear.weight, linear.bias)
        assert torch.allclose(linear(x), expected, rtol=near, atol=near)
        assert linear(x).shape == expected.shape
    x = tokens(12, 2, 2, dtype=dtype).permute(1, 2, 0)
    assert torch.allclose(linear(x), F.linear(x, linear.weight, linear.bias), rtol=near, atol=near)


def test_compiled_kernels_read_a_copy_until_weights_change() -> None:
    linear, x = linear_of(), tokens(3, 12)
    pack_weights(linear)
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
    pack_weights(odd)
    assert odd.packed is None and odd(tokens(3, 11)).shape == (3, 8)


def test_weights_of_other_types_or_in_training_are_not_packed() -> None:
    for linear in (linear_of(dtype=torch.float16), linear_of().requires_grad_()):
        pack_weights(linear)
        assert linear.packed is None
        assert linear(tokens(2, 12, dtype=linear.weight.dtype)).shape == (2, 8)


def zero(linear: Linear) -> None:
    linear.weight.data.zero_()


@pytest.mark.parametrize(
    "change",
    [
        lambda linear: (forget_packed(linear), zero(linear)),
        lambda linear: zero(linear.to(torch.float64).to(torch.float32)),
        lambda linear: linear.load_state_dict({"weight": torch.zeros(8, 12)}),
    ],
    ids=["forgotten", "another type", "loaded"],
)
def test_copies_are_dropped_where_weights_change(change) -> None:
    linear = linear_of()
    pack_weights(linear)
    change(linear)
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
