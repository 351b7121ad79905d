"""Matrix products of a few tokens, which cost what reading the weight costs."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SLICES = 4
_FEW, _MANY = 2, 64  # tokens up to which a weight is cut by input feature, and up to which it is cut at all


class Linear(nn.Linear):
    """nn.Linear that, once `order_weights` has seen it, multiplies a few tokens by slices of its frozen weight.

    MKL computes a product of two to some dozens of tokens on little more than one core, but the products of a batch on
    all. Measured for the four matrices of a layer, 800,000 weights, fp32, two cores: 342 -> 185 us at 2 tokens, 437 ->
    267 us at 8, 556 -> 418 us at 26.
    """

    by_input: Tensor | None = None  # (2, in / 2, out), a view of the weight
    by_output: Tensor | None = None  # (slices, in, out / slices), likewise

    def _apply(self, *arguments) -> "Linear":
        """A module that moves or changes its type loses the slices."""
        self.by_input = self.by_output = None
        return super()._apply(*arguments)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[:-1].numel()
        if self.by_input is None or not 0 < tokens <= _MANY:
            return F.linear(x, self.weight, self.bias)
        rows = x.reshape(tokens, -1)
        if tokens <= _FEW:
            one, other = torch.bmm(rows.view(tokens, 2, -1).transpose(0, 1), self.by_input)
            y = one + other
        else:
            y = torch.bmm(rows.expand(_SLICES, -1, -1), self.by_output).transpose(0, 1)
        y = y.reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def order_weights(module: nn.Module) -> None:
    """Transpose the memory of every frozen linear weight, not its shape, on a CPU with MKL, and cut it into slices.

    MKL reads a matrix of rows by input feature a quarter faster. On a GPU the order does not matter. Weights that are
    replaced afterwards, not written in place, must be ordered anew.
    """
    for linear in module.modules():
        if isinstance(linear, Linear) and linear.weight.device.type == "cpu" and torch.backends.mkl.is_available():
            weight = linear.weight.data.t().contiguous()
            linear.weight.data = weight.t()
            even = linear.in_features % 2 == linear.out_features % _SLICES == 0
            if even and not linear.weight.requires_grad and weight.dtype in (torch.float32, torch.float64):
                linear.by_input = weight.unflatten(0, (2, -1))
                linear.by_output = weight.unflatten(1, (_SLICES, -1)).transpose(0, 1)


def forget_slices(module: nn.Module) -> None:
    """Undo the cutting, not the order, before weights are moved by anything but the module's own `.to`."""
    for linear in module.modules():
        if isinstance(linear, Linear):
            linear.by_input = linear.by_output = None
