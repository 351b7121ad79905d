"""The processes of one training, as `accelerate launch` and torchrun start them."""

import os
from collections.abc import Iterable
from datetime import timedelta

import torch
from torch import Tensor

_PATIENCE = timedelta(days=30)  # the others wait while the first one evaluates


class Crew:
    """This process's rank among `count`. A launcher's processes talk by NCCL on GPUs, by gloo on CPUs."""

    def __init__(self, device: torch.device):
        self.rank, self.count = 0, 1
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from accelerate import PartialState

            self._state = PartialState(cpu=device.type == "cpu", timeout=_PATIENCE)
            self.rank, self.count = self._state.process_index, self._state.num_processes

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace the tensors by their means over all processes."""
        if self.count > 1:
            from accelerate.utils import reduce

            for tensor in tensors:
                tensor.copy_(reduce(tensor, "mean"))

    def wait(self) -> None:
        """Return when all processes are here."""
        if self.count > 1:
            self._state.wait_for_everyone()
