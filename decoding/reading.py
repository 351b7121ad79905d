"""How the target reads a tree: all of it in one pass, or on from where the drafter has left off."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from decoding.cache import KVCache
from decoding.noise import NodeNoise
from decoding.sampling import SamplingDistribution
from decoding.slots import Slots
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.whole_pass import Judging, Slice, WholePass
from models.base import Layers, TargetModel


@runtime_checkable
class TreeReader(Protocol):
    """Runs the target on trees, and keeps what the accepted paths leave in its KV cache.

    A drafter that runs layers of the target is one: what it has computed for a tree's nodes is not
    computed again. It wants trees as its levels have grown them, in any selection and order.
    """

    def begin(self, cache: KVCache) -> None:
        """Begin a round with the target's cache, in which nothing but committed tokens counts."""

    def forward(self, tree: DraftTree, slots: Slots) -> Callable[[], Tensor]:
        """Return the forward pass over a tree, ready to run.

        It returns the target's features (rows, slots, hidden).
        """

    def keep(self, path: Tensor) -> None:
        """Bring what the slots path (images, n) of the tree have cached to the front, in order."""


class WholeReader:
    """Runs all layers on all slots, which stand in the cache in their own order."""

    def __init__(
        self, target: TargetModel, distribution: SamplingDistribution, layers: Layers = ()
    ):
        """layers: whose hidden states are wanted behind the features."""
        self.target, self.layers = target, layers
        self.judgings: dict[torch.Size, Judging] = {}
        self.whole = WholePass(target.transformer, target, distribution, layers)

    def begin(self, cache: KVCache) -> None:
        self.cache = cache

    def forward(self, tree: DraftTree, slots: Slots) -> Callable[[], Tensor]:
        codes = slots.codes + self.target.vocab.first_id
        ids = codes.repeat_interleave(self.cache.guidance, 0)  # (rows, slots)
        context = self.cache.open(slots.depths, slots.visible)
        return partial(self.target.features, ids, context, self.layers)

    def runs_whole(self, slots: Slots) -> bool:
        """Return whether a pass and its scores are one call."""
        return slots.exits is None and self.whole.fits(self.cache, slots.codes.shape[1])

    def judging(self, noise: NodeNoise, tree: DraftTree) -> Judging:
        """Return what judges trees in that call; it is valid until the next round's."""
        if (judging := self.judgings.get(tree.tokens.shape)) is None:
            judging = self.judgings[tree.tokens.shape] = Judging(*tree.tokens.shape)
        judging.take(noise, tree)
        return judging

    def scored(
        self, slots: Slots, watch: Stopwatch, judging: Judging | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return features and log p of all slots by that call, which may judge trees, too."""
        tokens = Slice(slots.codes, slots.depths, slots.visible)
        return self.whole(self.cache, tokens, partial(watch.add, "target_forward"), judging)

    def keep(self, path: Tensor) -> None:
        self.cache.move(path)
