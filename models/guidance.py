"""Guidance rows one after the other: the target's activations take half the memory, its forward passes twice the calls.

The drafter still runs both rows in one batch; weights, caches and tokens are the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.base import Context, PromptRows, RowsCache, TargetModel


class SequentialGuidance:
    """A target that passes the first guidance row of all images, then the second; all else is the target's own."""

    def __init__(self, target: TargetModel):
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def read(self, prompt: PromptRows, context: Context) -> Tensor:
        """As the target's."""
        return self._in_turn(context, lambda rows, part: self.target.read(prompt.part(rows), part))

    def features(self, ids: Tensor, context: Context) -> Tensor:
        """As the target's."""
        return self._in_turn(context, lambda rows, part: self.target.features(ids[rows], part))

    def _in_turn(self, context: Context, forward: Callable[[slice, Context], Tensor]) -> Tensor:
        """The features of all rows; without a cache, which knows which rows belong together, they pass together."""
        cache: RowsCache | None = context.cache
        if cache is None or cache.guidance == 1:
            return forward(slice(None), context)
        parts = [slice(row, None, cache.guidance) for row in range(cache.guidance)]
        return torch.stack([forward(rows, self._part(context, rows)) for rows in parts], 1).flatten(
            0, 1
        )

    @staticmethod
    def _part(context: Context, rows: slice) -> Context:
        mask = None if context.mask is None else context.mask[rows]
        return Context(context.positions[rows], mask, context.cache.part(rows))
