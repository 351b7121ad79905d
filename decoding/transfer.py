"""From the host to the device without a wait."""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(values: Sequence, device: torch.device) -> Tensor:
    """Numbers known on the host, as a tensor of the device. The copy does not wait for the work that is queued there:
    the driver takes small pageable memory aside at once."""
    return torch.tensor(values).to(device, non_blocking=True)
