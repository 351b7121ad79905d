"""Dynamic draft trees (EAGLE-2, arXiv 2406.16858, section 4)."""

from dataclasses import replace

import torch
from torch import Tensor

from decoding.kernels import steps_for
from decoding.policies.base import Controller, FixedController, Shape, TreePlan
from decoding.renewal import best_path, renewed_worth
from decoding.tree import DraftTree


class DynamicTree:
    """Grows each level from the best nodes of the last; verifies the best nodes of all."""

    name = "eagle2"
    sizes_itself = False

    def __init__(self, shape: Shape, renews: bool = False):
        """renews: whether later rounds recall what the target predicts after a tree's nodes."""
        self.largest, self.renews = shape, renews

    def controller(self, seed: int) -> Controller:
        return FixedController(self.largest)

    def branching(self, plan: TreePlan, level: int) -> int:
        return plan.width

    def select(self, tree: DraftTree, plan: TreePlan, level: int) -> Tensor:
        if level == 1:
            return tree.tokens.new_zeros(len(tree.tokens), 1)
        if kernels := steps_for(tree.scores):
            return kernels.best(tree.scores, tree.newest, min(plan.width, tree.newest))
        first = tree.nodes + 1 - tree.newest
        return tree.scores[:, first:].topk(min(plan.width, tree.newest), dim=1).indices + first

    def ended(self, tree: DraftTree, plan: TreePlan) -> Tensor | None:
        """Return the images no deeper node of which could be kept.

        A child scores at most as much as its parent. So if nodes as good as the newest level's best
        fill an image's budget, none of its descendants gets in. Foreseen tokens and renewal would
        break this, since they raise the worth of nodes; with them all images go on.
        """
        if plan.window or self.renews or tree.nodes < plan.nodes:
            return None
        if kernels := steps_for(tree.scores):
            return kernels.ended(tree.scores, tree.newest, plan.limits.nodes)
        best = tree.scores[:, -tree.newest :].amax(1, keepdim=True)
        at_least_as_good = (tree.scores[:, 1:] >= best).sum(1, keepdim=True)
        return (at_least_as_good >= plan.limits.nodes) | (best == -torch.inf)

    def valued(self, tree: DraftTree) -> DraftTree:
        """Return the tree with what its nodes are worth to later rounds, where these recall it."""
        if tree.worth is not None or not self.renews:
            return tree
        return replace(tree, worth=renewed_worth(tree, best_path(tree)[1]))

    def prune(self, tree: DraftTree, plan: TreePlan) -> DraftTree:
        """Return the tree of the best nodes, up to each image's budget.

        Scores and worth never rise along a path and the sort is stable, so a kept node's parent is
        kept too.
        """
        if plan.uniform and tree.nodes <= plan.nodes:
            return tree
        count = min(plan.nodes, tree.nodes)
        tree = self.valued(tree)
        worth = tree.scores if tree.worth is None else tree.worth
        if tree.distributions is None and (kernels := steps_for(worth)):
            limits = None if plan.uniform else plan.limits.nodes
            return tree.of_nodes(kernels.prune(tree.columns, worth, count, limits))
        order = worth[:, 1:].sort(dim=1, descending=True, stable=True).indices
        scores = tree.scores[:, 1:].gather(1, order)
        if not plan.uniform:
            place = torch.arange(scores.shape[1], device=scores.device)
            scores = scores.masked_fill(place >= plan.limits.nodes, -torch.inf)
        kept, position = (order[:, :count] + 1).sort(dim=1)
        return tree.keep(kept, scores[:, :count].gather(1, position))
