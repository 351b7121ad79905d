"""Several processes at one command, as torchrun and `accelerate launch` start them.

One process alone does not import torch.
"""

import atexit
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from configs.fields import mismatch, missing, refuse
from support.locks import holder_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
PATIENCE = timedelta(days=30)  # shares end hours apart; the launcher notices a process that dies
_SHARED = "a folder that all processes share"


@dataclass(frozen=True)
class Processes:
    """The processes that share a command's work."""

    rank: int = 0  # this one's number
    count: int = 1  # how many there are
    local_rank: int = 0  # its number on this machine
    # waits for all of them and gives every one's value to each
    gather: Callable[[Any], list[Any]] = lambda value: [value]

    def share(self, items: Sequence[T]) -> list[T]:
        """Return every count-th of the items: those that this process works on."""
        return list(items[self.rank :: self.count])

    def wait(self) -> None:
        """Return when all processes have called it."""
        self.gather(None)

    def agree(self, flag: str, value: str, seen: object, expected: str = _SHARED) -> None:
        """Wait for all; a SettingsError in each unless all saw the same where a flag points."""
        if any(other != seen for other in self.gather(seen)):
            refuse(flag, value, expected)

    def agree_on_folder(self, flag: str, folder: str, lock: Path) -> None:
        """Wait for all; a SettingsError in each unless all see the first one's lock in a folder."""
        if self.count > 1:
            if self.rank == 0:
                with lock.open("rb") as file:
                    os.fsync(file.fileno())  # other machines would see it much later
            self.wait()  # until the first process has the lock
            self.agree(flag, folder, holder_of(lock))

    def average(self, tensors: "Iterable[Tensor]") -> None:
        """Replace the tensors by their means over all processes."""
        if self.count > 1:
            import torch.distributed as group

            for tensor in tensors:
                # Sum and divide: gloo has no ReduceOp.AVG.
                group.all_reduce(tensor)
                tensor /= self.count


def read_launch() -> Processes:
    """Read the environment that a launcher sets, without joining the others; alone without one."""
    count, local_rank = _number("WORLD_SIZE", least=1), _number("LOCAL_RANK")
    if count == 1 or "RANK" not in os.environ:
        return Processes(local_rank=local_rank)
    rank = _number("RANK")
    if rank >= count:
        raise mismatch("RANK", str(rank), f"0 to {count - 1}, less than WORLD_SIZE")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            launchers = "what torchrun or `accelerate launch` sets"
            raise missing(name, f"{launchers}, since WORLD_SIZE is {count}")
    _number("MASTER_PORT")
    return Processes(rank, count, local_rank)


def _end_group() -> None:
    import torch.distributed as group

    if group.is_initialized():
        group.destroy_process_group()


def refuse_several(command: str) -> None:
    """Raise a SettingsError if a launcher started several processes of a command that is one."""
    if (count := read_launch().count) > 1:
        raise mismatch(command, f"{count} processes", "one process", "Start it without torchrun.")


def _number(name: str, least: int = 0) -> int:
    """Return a variable of the environment, by default the least; a SettingsError if it is less."""
    text = os.environ.get(name, str(least))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= least):
        expected = f"a whole number from {least} in the environment, as torchrun sets it"
        raise mismatch(name, repr(text), expected)
    return int(text)


ALONE = Processes()


def launched(device: "torch.device | None" = None) -> Processes:
    """Join the launcher's other processes; one process alone without a launcher.

    device: whose tensors they average: by NCCL those of GPUs, by gloo all others.
    """
    launch = read_launch()
    if launch.count == 1:
        return ALONE
    import torch.distributed as group

    if not group.is_initialized():
        # Imported later, its functions would hold the group as a default argument, threads and all.
        import_module("torch.distributed.nn.functional")
        # or a thread of the group might free a tensor while Python ends, which aborts the process
        atexit.register(_end_group)
        on_gpus = device is not None and device.type == "cuda"
        group.init_process_group("nccl" if on_gpus else "gloo", timeout=PATIENCE)

    def gather(value: Any) -> list[Any]:
        values = [None] * launch.count
        group.all_gather_object(values, value)
        return values

    return replace(launch, gather=gather)
