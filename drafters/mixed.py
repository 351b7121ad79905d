"""Two sources in one tree: a drafter for the next tokens, stale predictions for those after them.

The drafter knows the path but is small. Stale predictions come from the target itself, but were
made after other tokens. Where both speak of a position, their geometric mixture hits more often
than either.
"""

import torch
from torch import Tensor

from decoding.device import Stopwatch
from decoding.drafter import Draft, TreeDrafter
from decoding.round import Round, RoundResult
from decoding.tree import GrowingTree
from drafters.drafting import Drafting
from drafters.eagle import eagle_drafter
from drafters.recall import RecallDrafter, recall_drafter
from models.base import PromptRows
from support.compiler import fused


class MixedDrafter:
    """Grows levels by a drafter, mixed with stale predictions.

    The forward pass that verifies the tree renews the predictions.
    """

    def __init__(self, near: TreeDrafter, far: RecallDrafter, levels: int, cut: bool):
        """Join two drafters.

        Args:
            near: follows paths.
            far: keeps the stale predictions.
            levels: that near is asked for; deeper ones are recalled alone.
            cut: whether distributions give some codes probability 0.
        """
        self.near, self.far, self.levels, self.cut = near, far, levels, cut
        self.reads, self.dtype = near.reads, near.dtype

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        for drafter in (self.near, self.far):
            drafter.open(images, slots, watch)

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        for drafter in (self.near, self.far):
            drafter.prefill(image, prompt, hidden, code)

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Draft:
        if tree.height >= self.levels:
            return self.far.expand(tree, picked, round)
        log_q = self.near.expand(tree, picked, round).log_q
        recalled, share = self.far.recall(tree, picked, round)
        return Draft(mixture(log_q, recalled.log_q, share, self.cut), recalled.trust)

    def update(self, result: RoundResult) -> None:
        for drafter in (self.near, self.far):
            drafter.update(result)


@fused
def mixture(log_q: Tensor, recalled: Tensor, share: Tensor, cut: bool) -> Tensor:
    """Return the geometric mixture of distributions log q (images, k, vocab).

    share: (images, k) of what is recalled. cut: whether some codes may have probability 0.
    """
    mixed = torch.lerp(log_q, recalled, share[..., None])
    if cut:  # a code that one of them cuts has the drafter's say
        mixed = torch.where(mixed.isfinite() & recalled.isfinite(), mixed, log_q)
    return mixed.log_softmax(-1)


def eagle_recall_drafter(parts: Drafting) -> MixedDrafter:
    """Build the mixture of an EAGLE drafter and recalled predictions."""
    levels = parts.method.head_depth or parts.method.depth
    near, far = eagle_drafter(parts), recall_drafter(parts)
    return MixedDrafter(near, far, levels, parts.distribution.cuts)
