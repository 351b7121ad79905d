"""Guidance rows one after the other: the target's activations take half the memory, its forward passes twice the calls.

The drafter still runs both rows in one batch; weights, caches and tokens are the same.
"""

from typing import Any

import torch
from torch import Tensor

from models.base import Context, RowsCache, TargetModel


class SequentialGuidance:
    """A target that passes the first guidance row of all images, then the second; all else is the target's own."""

    def __init__(self, target: TargetModel):
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def features(self, ids: Tensor, context: Context) -> Tensor:
        """As the target's; without a cache, which knows which rows belong together, all rows pass together."""
        cache: RowsCache | None = context.cache
        if cache is None or cache.guidance == 1:
            return self.target.features(ids, context)
        parts = [slice(row, None, cache.guidance) for row in range(cache.guidance)]
        features = [self.target.features(ids[rows], self._part(context, rows)) for rows in parts]
        return torch.stack(features, 1).flatten(0, 1)

    @staticmethod
    def _part(context: Context, rows: slice) -> Context:
        mask = None if context.mask is None else context.mask[rows]
        return Context(context.positions[rows], mask, context.cache.part(rows))
