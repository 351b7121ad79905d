"""Dynamic draft trees (EAGLE-2, arXiv 2406.16858, section 4)."""

import torch
from torch import Tensor

from decoding.policies.base import Controller, FixedController, Shape, TreePlan
from decoding.tree import DraftTree


class DynamicTree:
    """Every level is grown from the best nodes of the one before; the best nodes of all levels are verified."""

    name = "eagle2"
    sizes_itself = False

    def __init__(self, shape: Shape):
        self.largest = shape

    def controller(self, seed: int) -> Controller:
        return FixedController(self.largest)

    def branching(self, plan: TreePlan, level: int) -> int:
        return plan.width

    def select(self, tree: DraftTree, plan: TreePlan, level: int) -> Tensor:
        if level == 1:
            return tree.tokens.new_zeros(len(tree.tokens), 1)
        first = tree.nodes + 1 - tree.newest
        return tree.scores[:, first:].topk(min(plan.width, tree.newest), dim=1).indices + first

    def narrow(self, tree: DraftTree, plan: TreePlan) -> TreePlan:
        """A child scores at most its parent: it cannot enter a budget full of nodes as good as the newest level's
        best. Where foreseen tokens join, it can: they raise the scores of nodes."""
        if plan.window or tree.nodes < min(shape.nodes for shape in plan.shapes):
            return plan
        best = tree.scores[:, -tree.newest :].amax(1, keepdim=True)
        ahead = (tree.scores[:, 1:] >= best).sum(1)
        full = (ahead >= plan.budgets(best.device)) | (best[:, 0] == -torch.inf)
        return plan.end([True] * len(plan.shapes), tree.height) if bool(full.all()) else plan

    def prune(self, tree: DraftTree, plan: TreePlan) -> DraftTree:
        """The N best nodes. Scores and worth never rise along a path and the sort is stable, so parents come before
        their children."""
        count = min(plan.nodes, tree.nodes)
        worth = tree.scores if tree.worth is None else tree.worth
        order = worth[:, 1:].sort(dim=1, descending=True, stable=True).indices
        scores = tree.scores[:, 1:].gather(1, order)
        if not plan.uniform:
            place = torch.arange(scores.shape[1], device=scores.device)
            scores = scores.masked_fill(place >= plan.budgets(scores.device)[:, None], -torch.inf)
        kept, position = (order[:, :count] + 1).sort(dim=1)
        return tree.keep(kept, scores[:, :count].gather(1, position))
