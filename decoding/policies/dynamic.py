"""Dynamic draft trees (EAGLE-2, arXiv 2406.16858, section 4)."""

import torch
from torch import Tensor

from decoding.device import arange
from decoding.drafter import Drafter
from decoding.graft import best_path, continued, verify_gain
from decoding.policies.base import Controller, FixedController
from decoding.proposals import Proposal
from decoding.round import Round, TreeShape
from decoding.tree import DraftTree, GrowingTree


class LevelPolicy:
    """Grows trees level by level: picks nodes, expands them, takes children."""

    largest: TreeShape

    def controller(self, seed: int) -> Controller:
        return FixedController(self.largest)

    def grow_levels(self, round: Round, drafter: Drafter, proposal: Proposal) -> GrowingTree:
        """Return the trees with all levels of the round."""
        tree = GrowingTree.root(round.inputs.code, drafter.dtype)
        for level in range(1, round.shape.depth + 1):
            picked = self.pick(tree, round.shape.width)  # (images, k)
            draft = drafter.expand(tree, picked, round)
            count = self.children(level, round.shape.width)
            if draft.children is None:
                noise = proposal.noise(round, slice(level - 1, level), picked.shape[1])
                tokens, log_hits = proposal.children(draft, noise, count, level)
            else:
                tokens, log_hits = (values[..., :count] for values in draft.children)
            log_hits = within_limits(log_hits, round, level)
            tree = tree.extend(picked, tokens, log_hits, draft.log_q if round.keep_q else None)
        return tree

    def pick(self, tree: GrowingTree, width: int) -> Tensor:
        """Return the nodes (images, k) of the newest level to expand, by their index in it."""
        raise NotImplementedError

    def children(self, level: int, width: int) -> int:
        """Return how many children each expanded node gets at this level."""
        return width


def within_limits(log_hits: Tensor, round: Round, level: int) -> Tensor:
    """Return log_hits (images, k, c) of a new level, -inf outside an image's depth and width."""
    if round.shape.uniform:
        return log_hits
    # a batch has one shape: what an image does not have of it is absent, not left out
    device, (_, k, c) = log_hits.device, log_hits.shape
    width = round.inputs.width * (round.inputs.depth >= level)  # (images, 1)
    inside = (arange(k, device) < width)[:, :, None] & (arange(c, device) < width)[:, None]
    return log_hits.masked_fill(~inside, -torch.inf)


class DynamicTree(LevelPolicy):
    """Grows each level from the best nodes of the last; verifies the best nodes of all.

    With a window, the tokens that the drafter predicts for the next positions continue root and
    nodes. Without levels that is a chain: Jacobi decoding's (arXiv 2410.01699).
    """

    name = "eagle2"

    def __init__(self, shape: TreeShape, refreshes: bool = False):
        """refreshes: whether later rounds recall what the target predicts after a tree's nodes."""
        self.largest, self.refreshes = shape, refreshes

    def grow(self, round: Round, drafter: Drafter, proposal: Proposal) -> DraftTree:
        grown = self.grow_levels(round, drafter, proposal)
        if round.shape.window:
            tree, gain = continued(grown, round, drafter, proposal)
        else:
            tree = grown.complete()
            gain = verify_gain(tree, best_path(tree)) if self.refreshes else tree.scores
        return best_nodes(tree, gain, round)

    def pick(self, tree: GrowingTree, width: int) -> Tensor:
        if tree.height == 0:
            return tree.newest.parents  # the root's index in its level: 0
        scores = tree.newest.scores
        return scores.topk(min(width, scores.shape[1]), dim=1).indices


def best_nodes(tree: DraftTree, gain: Tensor, round: Round) -> DraftTree:
    """Return the tree of the best nodes, up to each image's budget.

    gain: (images, 1 + nodes) what they are ranked by. It never rises along a path and the sort is
    stable, so a kept node's parent is kept too.
    """
    if round.shape.uniform and tree.nodes <= round.shape.nodes:
        return tree
    count = min(round.shape.nodes, tree.nodes)
    # not topk, whose order of ties is open: a child that is certain has its parent's score
    order = gain[:, 1:].sort(dim=1, descending=True, stable=True).indices[:, :count]
    scores = tree.scores[:, 1:].gather(1, order)
    if not round.shape.uniform:
        # an image's budget counts here, while nodes are in the order of their gain
        rank = arange(count, scores.device)
        scores = scores.masked_fill(rank >= round.inputs.nodes, -torch.inf)
    kept, rank = (order + 1).sort(dim=1)
    return tree.keep(kept, scores.gather(1, rank))
