"""The device of a model: copies to and from it, and constants that stay on it."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor


def on_device(values: Sequence, device: torch.device) -> Tensor:
    """Return the host's numbers as a tensor on the device, without waiting for queued work."""
    table = torch.tensor(values)
    if device.type == "cuda":  # only pinned memory is copied without a wait
        table = table.pin_memory()
    return table.to(device, non_blocking=True)


def to_host(values: Tensor) -> np.ndarray:
    """Return numbers of the device on the host, which waits for it: once in a round."""
    if values.is_cuda:  # to memory that is not pinned they are copied twice
        # without `non_blocking`: numpy would read the memory before the copy is over
        values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)
    return values.numpy()


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Compute as the model does, whatever the caller has set in torch.

    A GPU is the thread's current device, for kernels of Triton and captures. Autocast is off, since
    it would round tokens apart. Tensors that name no device are the host's.
    """
    with ExitStack() as stack:  # of what is needed: every round enters, and a default device slows
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        for kind in {"cpu", device.type}:  # a codec may be on the CPU
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


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
