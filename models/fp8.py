"""Products in fp8: weights and inputs are stored in 8 bits, each row with a scale of its own.

One scale per row of the inputs, never per tensor: with that a token's distribution would depend on
the other rows of a pass, that is on the drafts, and no method would be exact.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from configs.fields import Flag, mismatch, refuse
from models.cpu.linear import Linear
from support.output import remark

TYPE, LARGEST = torch.float8_e4m3fn, 448.0
_STEP = 16  # torch's kernel takes matrices whose sides are multiples of this


def check_fp8(device: torch.device) -> None:
    """Refuse a GPU or a torch without products of scaled rows."""
    if device.type == "cpu":
        remark("--quantize fp8: on a CPU only to compare with a GPU; it is slower than --dtype")
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 9):
        refuse("quantize", "fp8", "only with a GPU of compute capability 8.9 or later")
    if capability < (9, 0) and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
        # earlier ones run it on another stream than the graph that is captured
        refuse("quantize", "fp8", "only with torch 2.12 or later on this GPU")


class ScaledRows(NamedTuple):
    """Rows in fp8, as products read them."""

    values: Tensor  # (..., width) in fp8
    scales: Tensor  # (..., 1) what each row is multiplied by, in fp32
    dtype: torch.dtype  # that they were rounded from


def scale_rows(x: Tensor) -> ScaledRows:
    """Return rows x (..., width) in fp8."""
    wide = x.float()
    scales = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / LARGEST
    return ScaledRows((wide / scales).to(TYPE), scales, x.dtype)


class Fp8Linear(Linear):
    """A linear layer whose weight and inputs are rounded to fp8 before they are multiplied."""

    scale_rows: Callable[[Tensor], ScaledRows] = staticmethod(scale_rows)

    def __init__(self, linear: Linear, name: str):
        """Quantise a layer; name: for errors."""
        outputs, inputs = linear.weight.shape
        if outputs % _STEP or inputs % _STEP:
            shape = str(tuple(linear.weight.shape))
            raise mismatch(Flag("quantize", f"matrix {name}"), shape, f"multiples of {_STEP}")
        nn.Module.__init__(self)
        self.in_features, self.out_features = inputs, outputs
        weight = scale_rows(linear.weight.data)
        self.weight, self.bias = nn.Parameter(weight.values, requires_grad=False), linear.bias
        self.scale = nn.Buffer(weight.scales.T.contiguous())  # (1, outputs)

    def forward(self, x: Tensor | ScaledRows) -> Tensor:
        values, scales, dtype = self.scale_rows(x) if isinstance(x, Tensor) else x
        multiply = by_torch if values.is_cuda else exactly
        rows = values.flatten(0, -2), self.weight.T, scales.flatten(0, -2), self.scale
        y = multiply(*rows).to(dtype)
        y = y if self.bias is None else y + self.bias
        return y.unflatten(0, values.shape[:-1])


def by_torch(x: Tensor, weight: Tensor, scale: Tensor, scales: Tensor) -> Tensor:
    """Return the product of x (n, inputs) and weight (inputs, outputs) with their scales."""
    return torch._scaled_mm(x, weight, scale, scales, out_dtype=torch.bfloat16)


def exactly(x: Tensor, weight: Tensor, scale: Tensor, scales: Tensor) -> Tensor:
    """Return the same in fp64, where sums of products of fp8 have no rounding, in any order."""
    return (x.double() @ weight.double()) * scale * scales


def use_fp8(network: nn.Module) -> None:
    """Replace the linear layers of a network."""
    for name, module in [*network.named_modules()]:
        for part, layer in module.named_children():
            if isinstance(layer, Linear):
                setattr(module, part, Fp8Linear(layer, f"{name}.{part}"))
