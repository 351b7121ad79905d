"""The processes of one training, as `accelerate launch` and torchrun start them."""

from collections.abc import Iterable

import torch
from torch import Tensor

from support.processes import PATIENCE, leave_at_exit, read_launch


class Crew:
    """This process's `rank` among `count`; they talk by NCCL on GPUs and by gloo on CPUs."""

    def __init__(self, device: torch.device):
        self.rank, self.count = 0, 1
        if read_launch().count > 1:
            from accelerate import PartialState

            leave_at_exit()  # before the group is joined, see there
            self._state = PartialState(cpu=device.type == "cpu", timeout=PATIENCE)
            self.rank, self.count = self._state.process_index, self._state.num_processes

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace the tensors by their means over all processes."""
        if self.count > 1:
            from accelerate.utils import reduce

            for tensor in tensors:
                tensor.copy_(reduce(tensor, "mean"))

    def wait(self) -> None:
        """Return when all processes have called it."""
        if self.count > 1:
            self._state.wait_for_everyone()
