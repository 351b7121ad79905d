"""How the target reads a tree: all of it in one pass, or on from where the drafter has left off."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from torch import Tensor

from decoding.cache import KVCache
from decoding.sampling import SamplingDistribution
from decoding.slots import Slots
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.whole_pass import Slice, WholePass
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
        self.whole = WholePass(target.transformer, target, distribution, layers)

    def begin(self, cache: KVCache) -> None:
        self.cache = cache

    def forward(self, tree: DraftTree, slots: Slots) -> Callable[[], Tensor]:
        codes = slots.codes + self.target.vocab.first_id
        ids = codes.repeat_interleave(self.cache.guidance, 0)  # (rows, slots)
        context = self.cache.open(slots.depths, slots.visible)
        return partial(self.target.features, ids, context, self.layers)

    def scored(self, slots: Slots, watch: Stopwatch) -> tuple[Tensor, Tensor] | None:
        """Return features and log p of all slots by one call, or None if torch has to run."""
        if not self.whole.fits(self.cache, slots.codes.shape[1]):
            return None
        tokens = Slice(slots.codes, slots.depths, slots.visible)
        return self.whole(self.cache, tokens, watch, "target_forward")

    def keep(self, path: Tensor) -> None:
        self.cache.move(path)
