"""Stale predictions, weighed by how similar the tokens are that they were made after.

A verified tree holds the target's predictions after many tokens that it did not choose: the other
candidates for the same place. After a token much like the chosen one, the target predicts much the
same. So the distribution after a node is recalled from all nodes of the last tree that stand at its
position, each weighed by the similarity of its last tokens to the node's own (kernel regression,
Nadaraya 1964). Siblings of an accepted token are then worth verifying for what they predict.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.kernels import Rounds, steps_for
from decoding.recall_kernels import LastTree, Likeness
from decoding.timing import Stopwatch
from decoding.transfer import constant
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.jacobi import JacobiDrafter, Recalled
from drafters.likeness import (
    REACH,
    SHARPNESS,
    ancestors,
    directions_of,
    observed,
    trust_in,
)
from models.base import PromptRows, TargetModel

# With m the similarity of the most similar node, the share of what is recalled in a mixture is
# a + b m, cut to [0, 1], and distributions are trusted by factors exp(a + b m^3): those of the
# mixture, and those of what is recalled alone. Fitted to closed-loop rounds of the shipped model.
SHARE = -0.34, 1.32
TRUST_MIXED = 0.0, 1.66
TRUST_ALONE = -0.97, 2.56
_LEAST = -60.0  # log-probability of codes that top-k or top-p cuts, so that means stay finite


@dataclass(frozen=True)
class Near:
    """The last tree as torch recalls it, n nodes, and behind them what is known without it.

    That is one entry per level, a prediction by position alone, which levels read that the last
    tree has not reached.

    keys: (images, n + levels, tokens x hidden) the directions of their last tokens, sharpened; 0
    without the tree. log_p: (images, n + levels, vocab) the predictions after them. mask: (images,
    levels, n + levels) 0 for what a level recalls, else -inf. known: (images, levels) whether that
    is the tree.
    """

    keys: Tensor
    log_p: Tensor
    mask: Tensor
    known: Tensor


class SimilarDrafter(JacobiDrafter):
    """Recalls predictions by similarity where the last tree has any, and as Jacobi elsewhere."""

    def __init__(
        self, target: TargetModel, window: int, guess: str, reach: int = 0, nodes: int = 0
    ):
        """nodes: of the largest tree, for which tables have room in rounds that are recorded."""
        super().__init__(target, window, guess, reach)
        self.nodes = nodes
        self.directions = directions_of(target)  # (codes, hidden)
        sharpness = torch.tensor(SHARPNESS, dtype=torch.double)
        self.likeness = Likeness(self.directions, sharpness, self.share, SHARE, _LEAST)

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        super().open(images, watch, fixed)
        self.fixed = fixed
        room = 1 + self.nodes * fixed
        # (images, tokens) the last decided codes, the root's first
        self.recent = self.root.new_zeros(images, REACH)
        self.last = LastTree(
            self.root.new_full((images, room), -1),
            self.root.new_zeros(images, room, REACH),
            self.distributions.new_zeros(images, room, self.codes),
        )

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        super().start(image, prompt, features, code)
        self.recent[image], self.last.places[image] = code, -1

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        if kernels := steps_for(self.last.log_p):
            log_q, _, self.trust = self._compiled(kernels, tree, nodes, TRUST_ALONE)
            return log_q
        log_q, likeness = self._recall(tree, nodes)
        self.trust = trust_in(likeness, *TRUST_ALONE)
        return log_q

    def recall(self, tree: DraftTree, nodes: Tensor) -> Recalled:
        if kernels := steps_for(self.last.log_p):
            return Recalled(*self._compiled(kernels, tree, nodes, TRUST_MIXED))
        log_q, likeness = self._recall(tree, nodes)
        level = slice(tree.height, tree.height + 1)
        least, slope = SHARE
        own = (least + slope * likeness).clamp(0, 1)
        share = torch.where(self._nearby().known[:, level], own, self.shares()[:, level])
        return Recalled(log_q, share, trust_in(likeness, *TRUST_MIXED))

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        self._remember(LastTree(*observed(tree, verdict, self.root, self.recent), log_p))
        super().observe(tree, log_p, verdict)

    def select(self, images: list[int]) -> None:
        super().select(images)
        self.recent, last = self.recent[images], self.last
        self.last = LastTree(last.places[images], last.lineage[images], last.log_p[images])

    def _remember(self, new: LastTree) -> None:
        """Replace the last tree; in place where rounds are recorded."""
        if not self.fixed:
            self.last = new
            return
        self.last.places.fill_(-1)
        count = new.places.shape[1]
        for name in ("places", "lineage", "log_p"):
            getattr(self.last, name)[:, :count] = getattr(new, name)

    def _nearby(self) -> Near:
        """Return the last tree as this round's levels recall it."""
        if self._near is None:
            last, sharpness = self.last, constant(SHARPNESS, self.device)
            keys = self._directions(last.lineage, sharpness)
            step = torch.arange(self.reach, device=self.device)
            here = (self.root + step)[..., None] == last.places[:, None]  # (images, levels, n)
            known = here.any(2)
            alone = torch.eye(self.reach, dtype=torch.bool, device=self.device)
            recalled = torch.cat([here, alone & ~known[..., None]], 2)
            mask = torch.zeros(recalled.shape, dtype=self.dtype, device=self.device)
            self._near = Near(
                F.pad(keys, (0, 0, 0, self.reach)),
                torch.cat([last.log_p, self.look_ahead()], 1).clamp_min_(_LEAST),
                mask.masked_fill_(~recalled, -torch.inf),
                known,
            )
        return self._near

    def _forget(self) -> None:
        super()._forget()
        self._near: Near | None = None

    def _compiled(
        self, kernels: Rounds, tree: DraftTree, nodes: Tensor, trust: tuple[float, float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return predictions (images, k, vocab), shares and trust (images, k)."""
        decided, ahead = (self.recent, self.root, self.reached), self.look_ahead()
        growing = tree.tokens, tree.parents, nodes, tree.height
        return kernels.recall(self.likeness, self.last, decided, ahead, growing, trust)

    def _recall(self, tree: DraftTree, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions (images, k, vocab), and the greatest similarities (images, k).

        That is 1 for the same tokens, and 0 where no node of the last tree stands.
        """
        near, level = self._nearby(), slice(tree.height, tree.height + 1)
        query = self._directions(self._lineage(tree, nodes))
        merit = torch.baddbmm(near.mask[:, level], query, near.keys.transpose(1, 2))
        likeness = merit.amax(2) / sum(SHARPNESS)
        return (merit.softmax(2) @ near.log_p).log_softmax(-1), likeness

    def _directions(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the directions of tokens (images, k, tokens), one after the other: (images, k, n).

        lengths: (tokens,) of them; 1 if None.
        """
        found = F.embedding(tokens, self.directions)
        return (found if lengths is None else found * lengths[:, None]).flatten(2)

    def _lineage(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        """Return the last tokens of a level's nodes (images, k), their own first.

        (images, k, tokens).
        """
        inside = min(tree.height + 1, REACH)  # the others were decided before the root
        tokens = ancestors(tree.tokens, tree.parents, nodes, inside)
        if inside == REACH:
            return tokens
        before = self.recent[:, None, 1 : 1 + REACH - inside]
        return torch.cat([tokens, before.expand(-1, nodes.shape[1], -1)], 2)
