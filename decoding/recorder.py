"""Rounds that are recorded once and replayed: one launch in place of hundreds.

A round in eager mode is launched operation by operation, which takes the host longer than a GPU
needs to compute it. Between the table of numbers that it begins with and the figures that it ends
with, a round is a function of tensors that changes its state in place. So it can be recorded as a
CUDA graph, one for all rounds of the same `Sizes`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from decoding.policies.base import Shape
from decoding.start import Sizes
from decoding.transfer import recording

Program = Callable[[Tensor], Any]  # table of numbers -> tensors that lie on the device

EAGER_ROUNDS = 1  # of a size, before it is recorded: they load kernels and choose algorithms
_LEAST_VISIBLE = 64  # slots


class Recorder(Protocol):
    """Runs rounds, and may replay them."""

    def __call__(self, sizes: Sizes, program: Program, table: Tensor) -> Any:
        """Return what the program of rounds of these sizes makes of a table."""

    def forget(self) -> None:
        """Drop all records, since tensors that they read are not in use any more."""


@dataclass
class _Record:
    """A round's graph, the table that it reads and what it writes."""

    runs: int = 0
    graph: Any = None
    table: Tensor | None = None
    result: Any = None


class CudaGraphs:
    """Records rounds as CUDA graphs that share one pool of memory.

    A result is valid until the next round.
    """

    def __init__(self) -> None:
        self.records: dict[Sizes, _Record] = {}
        self.pool: Any = None

    def __call__(self, sizes: Sizes, program: Program, table: Tensor) -> Any:
        """Run, record or replay a round."""
        record = self.records.setdefault(sizes, _Record())
        if record.runs < EAGER_ROUNDS:
            record.runs += 1
            with recording():
                return program(table)
        if record.graph is None:
            self._record(record, program, table)
        record.table.copy_(table)
        record.graph.replay()
        return record.result

    def _record(self, record: _Record, program: Program, table: Tensor) -> None:
        """Record a program; nothing is computed."""
        record.table, record.graph = table.clone(), torch.cuda.CUDAGraph()
        with recording(), torch.cuda.graph(record.graph, pool=self.pool):
            record.result = program(record.table)
        self.pool = record.graph.pool()

    def forget(self) -> None:
        """Drop all graphs and their memory."""
        self.records, self.pool = {}, None


def rounded(shape: Shape, largest: Shape) -> Shape:
    """Return the size in steps, at most `largest`, for trees of this shape: few records serve all.

    A tree is padded with nodes that are absent, which changes no token.
    """
    return Shape(
        _up(shape.depth, 2, largest.depth),
        _up(shape.width, 4, largest.width),
        _up(shape.nodes, 16, largest.nodes),
        _up(shape.window, 8, largest.window),
    )


def _up(number: int, step: int, most: int) -> int:
    return min(-(-number // step) * step, most)


def visible_slots(used: int, slots: int) -> int:
    """Return how many of a cache's slots a round reads that uses so many: at most a quarter more.

    Or 64, where that is more, but never more than there are.
    """
    step = max(_LEAST_VISIBLE, 1 << max(used.bit_length() - 3, 0))
    return _up(used, step, slots)
