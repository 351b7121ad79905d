"""From the host to the device without waiting for it."""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(values: Sequence, device: torch.device) -> Tensor:
    """Return numbers of the host as a tensor of the device.

    The copy does not wait for queued work: the driver sets small pageable memory aside at once.
    """
    return torch.tensor(values).to(device, non_blocking=True)
