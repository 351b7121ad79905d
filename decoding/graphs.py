"""Runs the programs of a round: calls them, or replays them as CUDA graphs.

Launching a round's hundreds of kernels takes the host longer than a GPU needs to run them. A round
reads one table of numbers and writes one table of statistics. Everything between is tensor code
that updates state in place, so on a GPU we capture it once per `RoundShape` and replay it.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from decoding.round import RoundShape
from support.output import first_line

log = logging.getLogger(__name__)

# One thread at a time: a capture begins by waiting for the whole GPU, which ends another one.
_capturing = threading.Lock()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a GPU's own: torch's is one of the GPU that a process captured on first."""
    return torch.cuda.Stream(device)


Program = Callable[[Tensor], Any]  # a part of a round, as a function of what changes


class Launch:
    """Runs the programs of a round by calling them, in their exact size."""

    def round_up(self, shape: RoundShape, largest: RoundShape) -> RoundShape:
        """Return the shape to run a round in; no round is larger than `largest`."""
        return shape

    def __call__(self, name: str, shape: RoundShape, program: Program, inputs: Tensor) -> Any:
        """Return program(inputs); programs of the same name and shape are the same function."""
        return program(inputs)

    def captured(self, name: str, shape: RoundShape) -> bool:
        """Return whether the host launches a program at once, and can go on while it runs."""
        return False

    def forget(self) -> None:
        """Drop what was captured: the memory that it reads is gone."""


class CudaGraphs(Launch):
    """Captures each program of a round once per shape and replays it.

    Outputs are valid until the next round: all graphs share one memory pool.
    """

    def __init__(self, on_capture: Callable[[bool], None] = lambda capturing: None):
        """on_capture: called with True before and False after a capture, in which no timer runs."""
        # each with the tensors that it reads and those that it writes
        self.graphs: dict[tuple[str, RoundShape], tuple[torch.cuda.CUDAGraph, Tensor, Any]] = {}
        self.warm: set[tuple[str, RoundShape]] = set()
        self.pool: Any = None
        self.broken = False
        self.on_capture = on_capture

    def round_up(self, shape: RoundShape, largest: RoundShape) -> RoundShape:
        """Return the shape with exact depth and row ends, and everything else at its largest.

        A draft level costs a forward pass, so trees never draft more levels than they ask for. The
        other sizes only pad: absent nodes and masked slots cost little, a graph per size a lot.
        """
        if self.broken:
            return shape
        rounded = replace(largest, depth=shape.depth)
        if not shape.row_ends:
            rounded = replace(rounded, row_ends=0, end_depths=())
        sizes = "width", "nodes", "window"
        exact = all(getattr(shape, size) == getattr(rounded, size) for size in sizes)
        # trees with fewer nodes than the rounded shape have absent ones, which must be masked
        return replace(rounded, uniform=shape.uniform and exact)

    def __call__(self, name: str, shape: RoundShape, program: Program, inputs: Tensor) -> Any:
        key = name, shape
        if self.broken:
            return program(inputs)
        if key not in self.warm:  # libraries load kernels and choose algorithms in the first call
            self.warm.add(key)
            return program(inputs)
        if key not in self.graphs and not self._capture(key, program, inputs):
            return program(inputs)
        graph, read, outputs = self.graphs[key]
        read.copy_(inputs, non_blocking=True)
        graph.replay()
        return outputs

    def captured(self, name: str, shape: RoundShape) -> bool:
        return (name, shape) in self.graphs

    def _capture(self, key: tuple[str, RoundShape], program: Program, inputs: Tensor) -> bool:
        """Capture a program, which computes nothing yet; returns whether that worked."""
        inputs, graph = inputs.clone(), torch.cuda.CUDAGraph()
        stream = _capture_stream(inputs.device)
        self.on_capture(True)
        try:
            # "thread_local": others go on meanwhile, and allocate memory
            given = {"pool": self.pool, "stream": stream, "capture_error_mode": "thread_local"}
            # where a capture cannot end, torch does not leave its stream
            with _capturing, torch.cuda.stream(stream), torch.cuda.graph(graph, **given):
                outputs = program(inputs)
        except RuntimeError as error:
            # images stay the same without graphs, so a batch that runs overnight goes on
            self.broken = True
            self.forget()  # what is never replayed keeps no memory
            log.warning(
                "CUDA graphs are off, rounds are launched kernel by kernel: %s. Please report this "
                "line with the versions of torch and the driver.", first_line(error),
            )  # fmt: skip
            return False
        finally:
            self.on_capture(False)
        self.pool = graph.pool()
        self.graphs[key] = graph, inputs, outputs
        return True

    def forget(self) -> None:
        self.graphs, self.warm, self.pool = {}, set(), None
