"""Matrix products of a few tokens on CPUs."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.native import NAMES, Panels

_MOST = 16_000_000  # weights of a matrix that may lie in memory twice


class Linear(nn.Linear):
    """nn.Linear that multiplies by a packed copy of its frozen weight, which `pack_weights` makes.

    If `native`, compiled kernels read the copy, else oneDNN does. MKL, which torch takes for fp32,
    packs the weight on every call. Measured in turns for the four matrices of a layer, 800,000
    weights, two cores: 196 -> 154 us by oneDNN at 2 tokens, 335 -> 285 us at 14, 514 -> 406 us at
    34. In bf16 torch asks oneDNN, which reorders the weight on every call: 86 -> 50 us, 124 -> 84
    us, 202 -> 156 us for three of these matrices (AVX512-bf16, one core).
    """

    native = False
    packed: Tensor | Panels | None = None
    changes = 0  # how often any copy was made or dropped, so that addresses are looked up again

    def _apply(self, *arguments, **flags) -> "Linear":
        """Drop the copy when the module moves or changes its type."""
        self.keep(None)
        return super()._apply(*arguments, **flags)

    def _load_from_state_dict(self, *arguments) -> None:
        """Drop the copy when the module gets other weights."""
        self.keep(None)
        super()._load_from_state_dict(*arguments)

    def keep(self, packed: Tensor | Panels | None) -> None:
        """Take a copy of the weight, or drop it."""
        self.packed = packed
        Linear.changes += 1

    def __getstate__(self) -> dict[str, object]:
        """Leave the copy out when the module is copied or pickled."""
        return self.__dict__ | {"packed": None}

    def forward(self, x: Tensor) -> Tensor:
        trains = x.requires_grad or self.weight.requires_grad
        if trains or torch.is_autocast_enabled("cpu"):
            return F.linear(x, self.weight, self.bias)
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """Return what `forward` does, where nothing is trained and no autocast is on."""
        # compilers have products of their own, and must not ask what changes from layer to layer
        plain = torch.compiler.is_compiling() or self.packed is None
        if plain or (self.native and not self.packed.take(x)):
            return F.linear(x, self.weight, self.bias)
        bias = self._parameters["bias"]
        if self.native:
            return self.packed.multiply(x, bias)
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, bias, "none", [], "")


def pack_weights(module: nn.Module) -> None:
    """Give every Linear's frozen weight on a CPU its packed copy, where its type allows that.

    Matrices of more than 16 million weights stay as they are. Weights that are changed in place
    must be packed again.
    """
    dtypes = packed_dtypes()
    for linear in _packable(module):
        weight = linear.weight.detach()
        if linear.weight.requires_grad or weight.device.type != "cpu":
            continue
        if linear.native:
            linear.keep(Panels(weight) if Panels.fit(weight) else None)
        elif weight.dtype in dtypes:
            linear.keep(torch.ops.mkldnn._reorder_linear_weight(weight, None))


def pack_natively(module: nn.Module) -> None:
    """Let compiled kernels multiply by the weights of a module, from now on."""
    for linear in _packable(module):
        linear.native = True
        linear.keep(None)
    pack_weights(module)


def packed_bytes(module: nn.Module, dtype: torch.dtype) -> int:
    """Return the bytes that copies of a frozen module's weights take on CPUs, at most."""
    if dtype not in NAMES:
        return 0
    return sum(dtype.itemsize * linear.weight.numel() for linear in _packable(module))


def forget_packed(module: nn.Module) -> None:
    """Drop the copies, before weights are trained or moved other than by the module's `.to`."""
    for linear in _packable(module):
        linear.keep(None)


def packed_dtypes() -> tuple[torch.dtype, ...]:
    """Return the types whose packed product is faster here.

    fp32 needs a torch with MKL and oneDNN, bf16 also a CPU that multiplies it (AVX512-bf16, AMX).
    """
    if not can_pack():
        return ()
    signs = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    multiplies = any(getattr(torch.cpu, sign, bool)() for sign in signs)
    return (torch.float32, torch.bfloat16) if multiplies else (torch.float32,)


def can_pack() -> bool:
    """Return whether this torch has oneDNN's product, and MKL, against which it was measured."""
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return both and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _packable(module: nn.Module) -> Iterator[Linear]:
    """Yield a module's Linears that are small enough to be in memory twice."""
    return (
        part
        for part in module.modules()
        if isinstance(part, Linear) and part.weight.numel() <= _MOST
    )
