"""The device of a model: copies to and from it, and computing as it does."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor


def on_device(values: Sequence, device: torch.device) -> Tensor:
    """Return the host's numbers as a tensor on the device, without waiting for queued work."""
    table = torch.tensor(values)
    if device.type == "cuda":  # only pinned memory is copied without a wait
        table = table.pin_memory()
    return table.to(device, non_blocking=True)


class HostCopy:
    """Numbers of the device on their way to the host; later work may write over the original."""

    def __init__(self, values: Tensor):
        # to memory that is not pinned they would be copied twice
        copied = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
        self.values = copied.copy_(values, non_blocking=True)
        self.end = torch.cuda.Event() if values.is_cuda else None
        if self.end is not None:
            self.end.record()

    def read(self) -> np.ndarray:
        """Return them; waits until they have arrived."""
        if self.end is not None:
            self.end.synchronize()
        return self.values.numpy()


def to_host(values: Tensor) -> np.ndarray:
    """Return numbers of the device on the host, which waits for it."""
    return HostCopy(values).read() if values.is_cuda else values.numpy()


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
