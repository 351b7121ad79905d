"""Guidance rows one after the other: half the memory for activations, twice the forward passes.

The drafter still computes both rows in one batch. Weights, KV caches and tokens are the same.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from models.base import CachePass, Context, Layers, PromptRows
from models.target import TargetModel


class SequentialGuidance(TargetModel):
    """A target that computes the first guidance row of all images, then the second."""

    def __init__(self, target: TargetModel):
        super().__init__(target.transformer, target.prompts, target.images, target.drafter)
        self.target = target

    def read(self, prompt: PromptRows, context: Context, layers: Layers = ()) -> Tensor:
        return _in_turn(
            context, lambda rows, part: self.target.read(prompt.part(rows), part, layers)
        )

    def features(self, ids: Tensor, context: Context, layers: Layers = ()) -> Tensor:
        return _in_turn(context, lambda rows, part: self.target.features(ids[rows], part, layers))


def _in_turn(context: Context, forward: Callable[[slice, Context], Tensor]) -> Tensor:
    """Return the features of all rows; at once without a cache that tells an image's rows apart."""
    cache, mask = context.cache, context.mask
    if not isinstance(cache, CachePass) or cache.guidance == 1:
        return forward(slice(None), context)
    states = []
    for row in range(cache.guidance):
        rows = slice(row, None, cache.guidance)
        part = Context(
            context.positions[rows], None if mask is None else mask[rows], cache.part(rows)
        )
        states.append(forward(rows, part))
    # An image's rows are neighbours, to which (images, guidance, n, width) flattens again.
    return torch.stack(states, 1).flatten(0, 1)
