"""The drafter of `eagle_recall`: an EAGLE head's predictions mixed with recalled ones.

The head knows the path but is small. Recalled predictions come from the target itself, but were
made after other tokens. At positions that have both, their geometric mixture is right more often
than either.
"""

import torch
from torch import Tensor

from configs.fields import settled
from decoding.drafter import Children, TreeDrafter
from decoding.proposals import Predictions, Proposal
from decoding.round import Round, RoundResult
from decoding.stopwatch import Stopwatch
from decoding.tree import GrowingTree, rows_at
from drafters.drafting import Drafting
from drafters.eagle import eagle_drafter
from drafters.recall import RecallDrafter, recall_drafter
from models.base import PromptRows
from support.compiler import fused


class EagleRecallDrafter(TreeDrafter):
    """Grows levels by a drafter that follows paths, mixed with what is recalled."""

    def __init__(self, head: TreeDrafter, recall: RecallDrafter, levels: int, cut: bool):
        """Join two drafters.

        Args:
            head: follows paths.
            recall: keeps the stale predictions.
            levels: that the head drafts; deeper ones are recalled alone.
            cut: whether distributions give some codes probability 0.
        """
        self.head, self.recall, self.levels, self.cut = head, recall, levels, cut
        self.reads, self.dtype = head.reads, head.dtype

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        for drafter in (self.head, self.recall):
            drafter.open(images, slots, watch)

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        for drafter in (self.head, self.recall):
            drafter.prefill(image, prompt, hidden, code)

    def begin(self, round: Round, proposal: Proposal) -> None:
        for drafter in (self.head, self.recall):
            drafter.begin(round, proposal)
        self.mixing = self.recall.mixing()

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Predictions:
        if tree.height >= self.levels:
            return self.recall.expand(tree, picked, round)
        log_q = self.head.expand(tree, picked, round).log_q
        window, ahead = self.recall.window, tree.height
        candidates, is_candidate = window.look_up(tree, picked)
        recalled = rows_at(window.result.log_q[:, ahead], candidates)
        sharpness, share, other = (values[:, ahead] for values in self.mixing)
        share = share.gather(1, candidates).where(is_candidate, other)
        sharpness = sharpness.gather(1, candidates).where(is_candidate, 1)
        return Predictions(mixture(log_q, recalled, share, self.cut), sharpness)

    def children(
        self, tree: GrowingTree, picked: Tensor, round: Round, proposal: Proposal
    ) -> Children:
        alone = tree.height >= self.levels
        source = self.recall.children if alone else super().children
        return source(tree, picked, round, proposal)

    def update(self, result: RoundResult) -> None:
        for drafter in (self.head, self.recall):
            drafter.update(result)


@fused
def mixture(log_q: Tensor, recalled: Tensor, share: Tensor, cut: bool) -> Tensor:
    """Return the geometric mixture of distributions log q (images, k, vocab).

    share: (images, k) of what is recalled. cut: whether some codes may have probability 0.
    """
    mixed = torch.lerp(log_q, recalled, share[..., None])
    if cut:  # a code that one of them cuts has the drafter's probability
        mixed = torch.where(mixed.isfinite() & recalled.isfinite(), mixed, log_q)
    return mixed.log_softmax(-1)


def eagle_recall_drafter(parts: Drafting) -> EagleRecallDrafter:
    """Build the mixture of an EAGLE drafter and recalled predictions."""
    levels = parts.method.head_depth or settled(parts.method.depth)
    head, recall = eagle_drafter(parts), recall_drafter(parts)
    return EagleRecallDrafter(head, recall, levels, parts.distribution.cuts)
