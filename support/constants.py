"""Numbers that never change, as tensors that stay on a device."""

from functools import cache, lru_cache

import torch
from torch import Tensor


def constant(values: tuple, device: torch.device) -> Tensor:
    """Return numbers that never change as a tensor on the device, which is copied there once."""
    return _constant(device, *values)


# Without a limit: a captured graph reads these tensors at their addresses. typed: 1 and 1.0 are
# equal, but make tensors of different types. And outside of inference mode, in which rounds make
# them: training also reads them, and autograd takes no tensors of that mode.
@lru_cache(maxsize=None, typed=True)
@torch.inference_mode(False)
def _constant(device: torch.device, *values: float) -> Tensor:
    # kept for all callers, so not in the default dtype that the first of them has
    dtype = torch.float32 if any(isinstance(value, float) for value in values) else None
    return torch.tensor(values, dtype=dtype).to(device)


def arange(count: int, device: torch.device) -> Tensor:
    """Return 0 to count - 1 as a tensor on the device, made once."""
    if torch.compiler.is_compiling():  # which computes it in the kernel that reads it
        return torch.arange(count, device=device)
    return _arange(count, device)


@cache
@torch.inference_mode(False)
def _arange(count: int, device: torch.device) -> Tensor:
    # a view, since lengths of the cache differ in every round: a table each would add up
    return _numbers(1 << count.bit_length(), device)[:count]


@cache
@torch.inference_mode(False)
def _numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


def identity(count: int, device: torch.device) -> Tensor:
    """Return (count, count) bool, true on the diagonal, as a tensor on the device, made once."""
    return _identity(count, device)


@cache
@torch.inference_mode(False)
def _identity(count: int, device: torch.device) -> Tensor:
    return torch.eye(count, dtype=torch.bool, device=device)
