"""Between host and device: numbers go there without a wait and come back in one announced place."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
from torch import Tensor

_RECORDING: ContextVar[bool] = ContextVar("recording", default=False)


@contextmanager
def recording() -> Iterator[None]:
    """Mark a piece of work that is recorded, or written so that it could be.

    No number passes between host and device in it.
    """
    token = _RECORDING.set(True)
    try:
        yield
    finally:
        _RECORDING.reset(token)


def is_recording() -> bool:
    """Return whether the work at hand is recorded, or written so that it could be."""
    return _RECORDING.get()


def may_ask(values: Tensor) -> bool:
    """Return whether the host may look at values at no cost: on a CPU, unless it is recorded."""
    return values.is_cpu and not is_recording()


def on_device(values: Sequence, device: torch.device) -> Tensor:
    """Return numbers of the host as a tensor of the device.

    The copy does not wait for queued work: the driver sets small pageable memory aside at once.
    """
    assert not is_recording(), "a record would keep these numbers"
    return torch.tensor(values).to(device, non_blocking=True)


def constant(values: tuple, device: torch.device) -> Tensor:
    """Return numbers that never change as a tensor of the device, which is copied there once."""
    return _constant(values, torch.device(device))


@lru_cache(maxsize=256)
def _constant(values: tuple, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values).to(device)


def to_host(values: Tensor) -> list | float:
    """Return a tensor's numbers as Python's, nested as its shape; waits for the device.

    Nothing else in a prefill or a round reads numbers back, with one exception: policies that end
    growth early, which ask after a level.
    """
    assert not is_recording(), "a record cannot wait"
    return values.tolist()
