"""Several processes at one command, as torchrun and `accelerate launch` start them; does not import torch for one."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

T = TypeVar("T")
_PATIENCE = timedelta(
    days=30
)  # shares end hours apart; a process that dies is noticed by the launcher


@dataclass(frozen=True)
class Processes:
    """This process's number, how many there are, and `gather`: waits for all, and gives everyone's value to each."""

    rank: int = 0
    count: int = 1
    gather: Callable[[Any], list[Any]] = lambda value: [value]

    def share(self, items: Sequence[T]) -> list[T]:
        """Every count-th of the items: what this process has to do."""
        return list(items[self.rank :: self.count])


ALONE = Processes()


def launched() -> Processes:
    """What the launcher's environment says, joined by gloo; one process alone without a launcher."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        return ALONE
    import torch.distributed as group

    if not group.is_initialized():
        group.init_process_group("gloo", timeout=_PATIENCE)

    def gather(value: Any) -> list[Any]:
        values = [None] * count
        group.all_gather_object(values, value)
        return values

    return Processes(group.get_rank(), count, gather)
