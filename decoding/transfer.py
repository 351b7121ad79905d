"""Between host and device: one small copy there at the start of a round, one back at its end."""

from collections.abc import Sequence
from functools import cache

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
    return values.cpu().numpy()


def constant(values: tuple, device: torch.device) -> Tensor:
    """Return numbers that never change as a tensor on the device, which is copied there once."""
    return _constant(values, torch.device(device))


@cache  # without a limit: a captured graph reads these tensors at their addresses
def _constant(values: tuple, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values).to(device)


def arange(count: int, device: torch.device) -> Tensor:
    """Return 0 to count - 1 as a tensor on the device, made once."""
    return _arange(count, torch.device(device))


def identity(count: int, device: torch.device) -> Tensor:
    """Return (count, count) bool, true on the diagonal, as a tensor on the device, made once."""
    return constant(tuple(tuple(a == b for b in range(count)) for a in range(count)), device)


@cache
def _arange(count: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(count, device=device)
