"""Dynamic draft trees (EAGLE-2, arXiv 2406.16858, section 4)."""

import torch
from torch import Tensor

from configs.fields import settled
from configs.methods import MethodSettings
from decoding.drafter import TreeDrafter
from decoding.policies.base import Controller, FixedController
from decoding.proposals import Proposal
from decoding.round import Round, TreeShape
from decoding.tree import DraftTree, GrowingTree
from models.base import ImageGrid
from support.compiler import fused
from support.constants import arange

# Tokens that later rounds save because this round predicts a position again: REFRESH next to the
# root, half of that HALVED positions on, falling as a Gaussian (measured with chains of 8 to 32).
REFRESH, HALVED = 0.2, 14


class LevelPolicy:
    """Grows trees level by level: picks nodes, and takes their children from the drafter."""

    largest: TreeShape
    reads_entropy = False

    def controller(self, seed: int) -> Controller:
        return FixedController(self.largest)

    def grow_levels(self, round: Round, drafter: TreeDrafter, proposal: Proposal) -> GrowingTree:
        """Return the trees with all levels of the round."""
        tree = GrowingTree.root(round.inputs.code, drafter.dtype)
        for level in range(1, round.shape.depth + 1):
            picked = self.pick(tree, round.shape.width)  # (images, k)
            tokens, log_hits, log_q = drafter.children(tree, picked, round, proposal)
            count = self.children(level, round.shape.width)
            log_hits = within_limits(log_hits[..., :count], round, level)
            tree = tree.extend(picked, tokens[..., :count], log_hits, log_q)
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
    """Grows each level from the best nodes of the last; verifies the best nodes of all."""

    name = "eagle2"

    def __init__(self, shape: TreeShape, refreshes: bool = False):
        """refreshes: whether later rounds recall what the target predicts after a tree's nodes."""
        self.largest, self.refreshes = shape, refreshes

    def grow(self, round: Round, drafter: TreeDrafter, proposal: Proposal) -> DraftTree:
        tree = self.grow_levels(round, drafter, proposal).complete()
        return best_nodes(tree, verify_gain(tree) if self.refreshes else tree.scores, round)

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


@fused
def verify_gain(tree: DraftTree) -> Tensor:
    """Return what verifying each node is worth in tokens, for drafters that recall the outcome.

    (images, 1 + nodes). A node yields its probability. On the path to the best of the deepest nodes
    it yields more: there this round predicts the next positions again, which makes later drafts
    right more often. Below the root no node is worth more than its ancestors.
    """
    refresh = REFRESH * 2 ** -(tree.depths / HALVED).square()
    deepest = tree.depths == tree.levels[:, None]
    best = tree.scores.masked_fill(~deepest, -torch.inf).argmax(1, keepdim=True)
    # Pointer jumping: each time over twice as many ancestors. The tree is not pruned yet, so
    # `DraftTree.visible` would multiply matrices of hundreds of nodes.
    path, above = best, tree.parents
    for _ in range(tree.height.bit_length()):
        path = torch.cat([path, above.gather(1, path)], 1)
        above = above.gather(1, above)
    on_path = torch.zeros_like(above, dtype=torch.bool).scatter_(1, path, True)
    gain = tree.scores.exp() + refresh * (on_path & tree.present)
    # A child that is certain may be worth more by the rounding of `exp`. Pruning could then keep it
    # without its parent, and verification would accept what follows no decided token.
    above = tree.parents
    for _ in range((tree.height - 1).bit_length()):
        gain = gain.minimum(gain.gather(1, above))
        above = above.gather(1, above)
    return gain


def dynamic_tree(method: MethodSettings, grid: ImageGrid) -> DynamicTree:
    """Build the policy of trees that always have the method's size."""
    return DynamicTree(_shape(method))


def recalled_tree(method: MethodSettings, grid: ImageGrid) -> DynamicTree:
    """Build it for a drafter whose later rounds recall the predictions after a tree."""
    return DynamicTree(_shape(method), refreshes=True)


def _shape(method: MethodSettings) -> TreeShape:
    return TreeShape(settled(method.depth), settled(method.width), settled(method.nodes))
