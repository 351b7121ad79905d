"""Between host and device: numbers go there without a wait and come back in one announced place."""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(values: Sequence, device: torch.device) -> Tensor:
    """Return numbers of the host as a tensor of the device.

    The copy does not wait for queued work: the driver sets small pageable memory aside at once.
    """
    return torch.tensor(values).to(device, non_blocking=True)


def to_host(values: Tensor) -> list | float:
    """Return a tensor's numbers as Python's, nested as its shape; waits for the device.

    Nothing else in a prefill or a round reads numbers back, with one exception: policies that end
    growth early, which ask after a level.
    """
    return values.tolist()
