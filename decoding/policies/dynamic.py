"""Dynamic draft trees (EAGLE-2, arXiv 2406.16858, section 4)."""

from dataclasses import replace

import torch
from torch import Tensor

from decoding.device import arange
from decoding.drafter import Drafter
from decoding.graft import Chain, best_path, graft, verify_gain
from decoding.graphs import TreeShape
from decoding.policies.base import LevelPolicy
from decoding.proposals import Calibration, Proposal
from decoding.round import Round
from decoding.tree import DraftTree, GrowingTree


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
        if not round.shape.window:
            tree = grown.complete()
            gain = verify_gain(tree, best_path(tree)) if self.refreshes else tree.scores
            return best_nodes(tree, gain, round)
        chain = _chain(round, drafter, proposal)
        if not grown.height:
            tree = chain.as_tree(round.inputs.code)
            return best_nodes(tree, tree.scores, round)
        grafted, best = graft(grown.complete(), chain)
        return best_nodes(grafted, verify_gain(grafted, best), round)

    def pick(self, tree: GrowingTree, width: int) -> Tensor:
        if tree.height == 0:
            return tree.newest.parents  # the root's index in its level: 0
        scores = tree.newest.scores
        return scores.topk(min(width, scores.shape[1]), dim=1).indices


def _chain(round: Round, drafter: Drafter, proposal: Proposal) -> Chain:
    """Return what the drafter predicts for the next positions."""
    draft = drafter.predict_ahead(round)
    # factors of the calibration were fitted to the levels of trees
    tokens, log_hits = replace(proposal, calibration=Calibration()).children(
        draft, proposal.noise_ahead(round), 1, level=1
    )
    log_q = draft.log_q if round.keep_q else None
    return Chain(tokens[..., 0], log_hits[..., 0], round.inputs.window, log_q)


def best_nodes(tree: DraftTree, gain: Tensor, round: Round) -> DraftTree:
    """Return the tree of the best nodes, up to each image's budget.

    gain: (images, 1 + nodes) what they are ranked by. It never rises along a path and the sort is
    stable, so a kept node's parent is kept too.
    """
    if round.shape.uniform and tree.nodes <= round.shape.nodes:
        return tree
    count = min(round.shape.nodes, tree.nodes)
    order = gain[:, 1:].sort(dim=1, descending=True, stable=True).indices[:, :count]
    scores = tree.scores[:, 1:].gather(1, order)
    if not round.shape.uniform:
        rank = arange(count, scores.device)
        scores = scores.masked_fill(rank >= round.inputs.nodes, -torch.inf)
    kept, rank = (order + 1).sort(dim=1)
    return tree.keep(kept, scores.gather(1, rank))
