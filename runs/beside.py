"""Where updates of a drafter run: between rounds, or on a GPU beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class Updates(Protocol):
    """Runs updates of a drafter, one at a time.

    overlaps: whether rounds go on while one runs.
    """

    overlaps: bool

    @property
    def busy(self) -> bool:
        """Whether an update is in flight; does not wait for it."""

    def run(self, read: object) -> Any:
        """Return a context whose block is one update; read: what holds the tensors it reads."""

    def wait(self) -> None:
        """Return when no update is in flight."""


class Between:
    """Updates that are made when their block ends, as on a CPU."""

    overlaps = busy = False

    @contextmanager
    def run(self, read: object) -> Iterator[None]:
        """Run one update, which is this block."""
        yield

    def wait(self) -> None:
        """Return at once."""


class Beside:
    """Updates on a CUDA stream of their own, next to the rounds of the main one.

    What the main stream does between two updates, such as to copy weights, comes after the first
    one if `busy` was asked for, and before the second one in any case.
    """

    overlaps = True

    def __init__(self, device: torch.device, cuda: Any = torch.cuda):
        """cuda: `torch.cuda`, or a stand-in of tests."""
        self.device, self.cuda, self.stream = device, cuda, cuda.Stream(device)
        self.ended: Any = None  # an event, of the update in flight
        self.read: object = None

    @property
    def busy(self) -> bool:
        """Whether an update is in flight; does not wait for it."""
        if self.ended is not None and self.ended.query():
            self._forget()
        return self.ended is not None

    @contextmanager
    def run(self, read: object) -> Iterator[None]:
        """Enqueue one update, which is this block, after all that the main stream has to do so far.

        read: what holds the tensors that it reads. They are kept until it ends: the memory of those
        that are dropped before is given to later rounds, which do not wait for it.
        """
        self.read = read
        self.stream.wait_stream(self.cuda.current_stream(self.device))
        with self.cuda.stream(self.stream):
            yield
        self.ended = self.cuda.Event()
        self.ended.record(self.stream)

    def wait(self) -> None:
        """Wait for the update in flight, if there is one."""
        if self.ended is not None:
            self.ended.synchronize()
            self._forget()

    def _forget(self) -> None:
        self.ended = self.read = None


def updates_on(device: torch.device) -> Updates:
    """Return how updates run on a device."""
    return Beside(device) if device.type == "cuda" else Between()
