"""Chains: one draft token for each of the next positions (Jacobi decoding, arXiv 2410.01699)."""

import torch
import torch.nn.functional as F

from configs.fields import settled
from configs.methods import MethodSettings
from decoding.drafter import ChainDrafter
from decoding.policies.base import Controller, FixedController
from decoding.proposals import Proposal
from decoding.round import Round, TreeShape
from decoding.tree import DraftTree
from models.base import ImageGrid
from support.constants import arange, constant


class ChainTree:
    """The best token at each of the next positions, by what the drafter predicts ahead."""

    name = "jacobi"
    reads_entropy = False

    def __init__(self, window: int):
        """window: positions."""
        self.largest = TreeShape(0, 1, window, window)

    def controller(self, seed: int) -> Controller:
        return FixedController(self.largest)

    def grow(self, round: Round, drafter: ChainDrafter, proposal: Proposal) -> DraftTree:
        root, window = round.inputs.code, round.shape.window  # (images,)
        predictions = drafter.predict_ahead(round)
        noise = proposal.noise(round, slice(0, window), 1)
        tokens, log_hits = proposal.children(predictions, noise, 1)  # (images, window, 1)
        depths = arange(window + 1, root.device)
        # the score of a path; without its minimum rounding could let it rise
        scores = log_hits[..., 0].cumsum(1).cummin(1).values
        scores = scores.masked_fill(depths[1:] > round.inputs.window, -torch.inf)
        return DraftTree(
            torch.cat([root[:, None], tokens[..., 0]], 1),
            constant((0, *range(window)), root.device).expand(len(root), -1),
            depths.expand(len(root), -1),
            F.pad(scores, (1, 0)),
            height=window,
            width=1,
            log_q=F.pad(predictions.log_q, (0, 0, 0, 1)) if round.keep_q else None,
        )


def chain_tree(method: MethodSettings, grid: ImageGrid) -> ChainTree:
    """Build the policy of --window positions."""
    return ChainTree(settled(method.window))
