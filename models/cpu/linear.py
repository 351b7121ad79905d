"""Linear layers that compiled kernels can multiply, on CPUs, and the copies that these read."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.cpu.native import NAMES, TYPES, kernels_of, lanes


def can_read(x: Tensor) -> bool:
    """Return whether kernels may compute with a tensor: plain numbers in a CPU's memory.

    Autocast would round them, and a compiler follows only torch's own operations.
    """
    watched = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    # A subclass, such as torchao's, keeps its numbers in another way.
    return type(x) is Tensor and x.is_cpu and not watched


class Panels:
    """A matrix in the order in which the kernels read it."""

    def __init__(self, weight: Tensor, stored: torch.dtype):
        """Copy weight (outputs, depth) from a CPU's memory; stored: its type in the copy."""
        self.outputs, self.depth = weight.shape
        self.dtype, self.stored = weight.dtype, stored
        step = 2 * lanes(weight.dtype)
        source = weight.to(self.stored).contiguous()
        # Outputs are filled up to whole panels.
        self.memory = source.new_empty(-(-self.outputs // step) * step * self.depth)
        self._kernels, self.address = kernels_of(self.dtype, self.stored), self.memory.data_ptr()
        self._kernels.pack(self.outputs, self.depth, source.data_ptr(), self.address)

    @staticmethod
    def fit(weight: Tensor) -> bool:
        """Return whether a weight can be copied so."""
        # `.data`: a Parameter is a subclass. Even: bf16 may be multiplied in pairs of columns.
        return can_read(weight.data) and weight.dtype in TYPES and weight.shape[1] % 2 == 0

    def take(self, x: Tensor) -> bool:
        """Return whether `multiply` takes x."""
        return can_read(x) and x.dtype == self.dtype and x.shape[-1] == self.depth

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x weight^T + bias, for x (..., depth) of the weight's type."""
        x = x.contiguous()
        out = x.new_empty(*x.shape[:-1], self.outputs)
        self._kernels.linear(
            x.numel() // self.depth, self.depth, self.outputs, x.data_ptr(), self.address,
            None if bias is None else bias.data_ptr(), out.data_ptr(),
        )  # fmt: skip
        return out


class Linear(nn.Linear):
    """nn.Linear that multiplies by a packed copy of its frozen weight, if `pack_weights` made one.

    MKL, which torch takes for fp32 on CPUs, packs the weight again on every call.
    """

    packed: Panels | None = None

    def _apply(self, *arguments: Any, **flags: Any) -> "Linear":
        """Drop the copy when the module moves or changes its type."""
        self.packed = None
        return super()._apply(*arguments, **flags)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Drop the copy when the module gets other weights."""
        self.packed = None
        super()._load_from_state_dict(*arguments)

    def __getstate__(self) -> dict[str, object]:
        """Leave the copy out when the module is copied or pickled: it holds an address."""
        return self.__dict__ | {"packed": None}

    def forward(self, x: Tensor) -> Tensor:
        packed = self.packed
        # The kernels have no backward pass.
        if packed is None or x.requires_grad or self.weight.requires_grad or not packed.take(x):
            return F.linear(x, self.weight, self.bias)
        return packed.multiply(x, self.bias)


def pack_weights(module: nn.Module) -> None:
    """Give every Linear's frozen weight on a CPU its packed copy, where its type allows that.

    Weights in fp32 whose numbers all have 16 bits, as those of most checkpoints do, are stored so,
    which halves the time to read them and changes no product. Weights that are changed in place
    must be packed again.
    """
    forget_packed(module)
    if (stored := stored_type(module)) is None:
        return
    for linear in _packable(module):
        linear.packed = Panels(linear.weight, stored)


def stored_type(module: nn.Module) -> torch.dtype | None:
    """Return the shortest type that holds all packable weights of a module without loss.

    One type for all of them, since the kernels run all layers in one call. None: nothing to pack.
    """
    weights = [linear.weight for linear in _packable(module)]
    if not weights:
        return None
    dtype = weights[0].dtype
    for of, stored in NAMES:
        shorter = of == dtype and stored.itemsize < dtype.itemsize
        if shorter and all(torch.equal(weight.to(stored).to(dtype), weight) for weight in weights):
            return stored
    return dtype


def forget_packed(module: nn.Module) -> None:
    """Drop the copies, before weights are trained or moved other than by the module's `.to`."""
    for linear in linears_of(module):
        linear.packed = None


def linears_of(module: nn.Module) -> Iterator[Linear]:
    """Yield the linear layers of a network."""
    return (layer for layer in module.modules() if isinstance(layer, Linear))


def _packable(module: nn.Module) -> list[Linear]:
    frozen = (linear for linear in linears_of(module) if not linear.weight.requires_grad)
    return [linear for linear in frozen if Panels.fit(linear.weight)]
