"""Drafts without a trained drafter: the target's earlier predictions (SJD, arXiv 2410.01699).

A forward pass that verifies a tree also predicts positions that stay undecided, after draft tokens
that may be wrong. These *stale* predictions propose the next drafts (Jacobi decoding). With the
proposal `coupled` the first candidates are the target's own stale choices (the Gumbel coupling of
SCD, arXiv 2510.24211); with `sampled` new drafts are sampled in every round, as in SJD.
"""

import math

import torch
from torch import Tensor

from configs.fields import settled
from decoding.drafter import ChainDrafter
from decoding.proposals import Predictions
from decoding.round import Round, RoundResult, TreeShape
from decoding.stopwatch import Stopwatch
from drafters.drafting import Drafting
from models.base import ImageGrid, PromptRows
from models.target import TargetModel
from support.constants import arange

_SPARE_ROWS = 2  # a scratch row for masked writes, and a row with the uniform distribution


def kept_rows(grid: ImageGrid, reach: int) -> int:
    """Return the positions whose predictions are kept; reach: the greatest depth of a node."""
    return grid.widest + reach + 1


class JacobiDrafter(ChainDrafter):
    """Remembers the target's latest prediction at every position of an image.

    A position without a prediction borrows that of the position above it (guess `above`), of the
    last predicted one (`left`), or takes the uniform distribution (`random`). In the first row
    `above` means `left`.

    Only what is still read is kept: a row of the image before the last prediction, and the
    undecided positions. Position p has row (p - 1) % rows; position 0, which has no prediction,
    stands for the uniform distribution, in the last row of the table.
    """

    def __init__(self, target: TargetModel, guess: str, largest: TreeShape):
        """guess: above, left or random. largest: no tree is larger."""
        self.grid, self.codes, self.device = target.grid, target.vocab.size, target.device
        self.dtype = torch.promote_types(target.dtype, torch.float32)
        self.guess, self.largest = guess, largest
        self.rows = kept_rows(self.grid, largest.reach)

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        size = images, self.rows + _SPARE_ROWS, self.codes
        uniform = -math.log(self.codes)
        self.log_p = torch.full(size, uniform, dtype=self.dtype, device=self.device)
        # (images, 1) the last position with a prediction; position 0 has none
        self.reached = torch.zeros(images, 1, dtype=torch.long, device=self.device)

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        # predictions of the image before may stay: beyond `reached` none is read
        self.reached[image] = 0

    def predict_ahead(self, round: Round) -> Predictions:
        return Predictions(self.ahead(round)[:, : round.shape.window])

    def ahead(self, round: Round) -> Tensor:
        """Return predictions (images, reach, vocab) of all positions that a round's trees reach."""
        position = round.position(arange(round.shape.reach, self.device))
        # fmod keeps the sign, which `%` would not
        rows = (self._source(position) - 1).fmod(self.rows)  # -1, the last row: position 0
        return self.log_p[arange(len(rows), self.device)[:, None], rows]

    def update(self, result: RoundResult) -> None:
        """Take over the predictions along one branch of the verified tree.

        It is the branch that shares most with the accepted path, and the longest of those.
        """
        tree, verdict = result.tree, result.verdict
        if tree.chain:
            branch = tree.present
            last = branch.sum(1, keepdim=True) - 1
        else:
            accepted = tree.path_to(verdict.path.gather(1, verdict.accepted[:, None]))
            # accepted nodes among a node and its ancestors
            shared = (tree.visible & accepted[:, None]).sum(2)
            # by what is shared, then by depth, which the height bounds
            rank = (shared * (tree.height + 1) + tree.depths).masked_fill(~tree.present, -1)
            last = rank.argmax(1, keepdim=True)
            branch = tree.path_to(last)
        position = result.round.inputs.decided + tree.depths  # of each node's children
        rows = torch.where(branch, (position - 1) % self.rows, self.rows)
        images = arange(len(rows), self.device)[:, None]
        self.log_p[images, rows] = result.log_p
        self.reached.copy_(position.gather(1, last).maximum(self.reached))

    def _source(self, position: Tensor) -> Tensor:
        """Return the position whose prediction stands for each position (images, n)."""
        if self.guess == "above":
            columns, first = self.grid.around(position)
            beyond = (position - self.reached).add(columns - 1)
            rows = beyond.div(columns, rounding_mode="floor")  # up to a prediction
            above = position - rows * columns
            within = above > 0 if self.grid.preview is None else (above > 0) & (above >= first)
            borrowed = torch.where(within, above, self.reached)
        else:
            none = torch.zeros_like(self.reached)
            borrowed = self.reached if self.guess == "left" else none
        return torch.where(position <= self.reached, position, borrowed)


def jacobi_drafter(parts: Drafting) -> JacobiDrafter:
    """Build the drafter of chains."""
    return JacobiDrafter(parts.target, settled(parts.method.guess), parts.largest)
