"""Drafts without a trained drafter: the target's earlier predictions (SJD, arXiv 2410.01699).

A forward pass that verifies a tree also predicts positions that stay undecided, after draft tokens
that may be wrong. These stale predictions propose the next drafts (Jacobi decoding). With the
proposal `coupled` the first candidates are the target's own stale choices (the Gumbel coupling of
SCD, arXiv 2510.24211); with `sampled` they are drawn anew in every round, as in SJD.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.drafter import Decided
from decoding.kernels import steps_for
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from models.base import ImageGrid, PromptRows, TargetModel

_FURTHER = 2  # rows after those of positions: one for what nobody reads, one uniform distribution


def kept_rows(grid: ImageGrid, reach: int) -> int:
    """Return the positions whose predictions are kept; reach: the greatest depth of a node."""
    return grid.columns + reach + 1


def table_shape(images: int, grid: ImageGrid, codes: int, reach: int) -> tuple[int, int, int]:
    """Return the shape of the table of predictions; reach: the greatest depth of a node."""
    return images, kept_rows(grid, reach) + _FURTHER, codes


@dataclass(frozen=True)
class Recalled:
    """Stale predictions after some nodes.

    log_q: (images, k, vocab). share: (images, k) of them in a mixture with a drafter's; 1 in place
    of k where it is the same for all. trust: (images, k) of such a mixture, as a drafter's; None
    for 1.
    """

    log_q: Tensor
    share: Tensor
    trust: Tensor | None = None


class JacobiDrafter:
    """Remembers the target's latest prediction at every position of an image.

    A position without a prediction borrows that of the position above it (guess `above`), of the
    last predicted one (`left`), or takes the uniform distribution (`random`). In the first row
    `above` means `left`.

    Only what is still read is kept: a row of the image before the last prediction, and the
    undecided positions. Position p has row (p - 1) % rows; position 0, which has no prediction,
    stands for the uniform distribution, in the last row of the table.

    share: of its predictions in a mixture with those of a drafter that follows paths; hits change
    little from 0.3 to 0.5.
    """

    share = 0.35
    replays, trust, reads = True, None, ()

    def __init__(self, target: TargetModel, window: int, guess: str, reach: int = 0):
        """window: most positions after the root that are drafted; guess: above, left or random;
        reach: the greatest depth of a node, where it is more than the window.
        """
        self.grid, self.codes, self.device = target.grid, target.vocab.size, target.device
        self.dtype = torch.float64 if target.dtype == torch.float64 else torch.float32
        self.window, self.guess, self.reach = window, guess, max(window, reach)
        self.rows = kept_rows(self.grid, self.reach)
        self._forget()

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        size = images, self.rows + _FURTHER, self.codes
        uniform = -math.log(self.codes)
        self.distributions = torch.full(size, uniform, dtype=self.dtype, device=self.device)
        # (images, 1) the position of the last decided token
        self.root = torch.zeros(images, 1, dtype=torch.long, device=self.device)
        # (images, 1) the last position with a prediction; position 0 has none
        self.reached = torch.zeros_like(self.root)
        self.image = torch.arange(images, device=self.device)[:, None]
        self.steps = torch.arange(1, self.reach + 1, device=self.device)  # to the next positions

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        self.root[image], self.reached[image] = 0, 0
        self._forget()

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        """Return stale predictions (images, k, vocab) after nodes (images, k).

        They depend on a node's position, not on its path.
        """
        return self.recall(tree, nodes).log_q

    def recall(self, tree: DraftTree, nodes: Tensor) -> Recalled:
        """Return the same for a mixture with a drafter's.

        A position that borrows the prediction of another one has a share of 0.
        """
        level = slice(tree.height, tree.height + 1)
        log_q = self.look_ahead()[:, level].expand(-1, nodes.shape[1], -1)
        return Recalled(log_q, self.shares()[:, level])

    def foresee(self) -> Tensor:
        """Return stale predictions (images, window, vocab) of the next positions."""
        return self.look_ahead()[:, : self.window]

    def look_ahead(self) -> Tensor:
        """Return predictions (images, n, vocab) of as many positions as a tree may be deep."""
        if self._ahead is None and (kernels := steps_for(self.distributions)):
            up = {"above": self.grid.columns, "left": 0, "random": -1}[self.guess]
            places = self.root, self.reached
            self._ahead = kernels.ahead(self.distributions, *places, self.reach, up)
        if self._ahead is None:
            self._ahead = self._distributions(self._next())
        return self._ahead

    def shares(self) -> Tensor:
        """Return the shares (images, n) of these predictions in a mixture."""
        if self._shares is None:
            self._shares = self.share * (self._next() <= self.reached).to(self.dtype)
        return self._shares

    def _next(self) -> Tensor:
        """Return the next positions (images, n)."""
        return self.root + self.steps

    def _forget(self) -> None:
        """Drop what a round has looked up for all its levels."""
        self._ahead: Tensor | None = None
        self._shares: Tensor | None = None

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        """Take over the predictions along one branch of the verified tree.

        It is the branch that shares most with the accepted path, and the longest of those.
        """
        if kernels := steps_for(log_p):
            outcome, places = (verdict.path, verdict.accepted), (self.root, self.reached)
            kernels.remember(self.distributions, *places, tree.columns, outcome, log_p)
            self._forget()
            return
        accepted = verdict.accepted[:, None]
        if tree.chain:
            branch = tree.present
            last = branch.sum(1, keepdim=True) - 1
        else:
            taken = tree.line(verdict.path.gather(1, accepted))
            # accepted nodes among a node and its ancestors
            shared = (tree.visible & taken[:, None]).sum(2)
            merit = (shared * (tree.height + 1) + tree.depths).masked_fill(~tree.present, -1)
            last = merit.argmax(1)[:, None]
            branch = tree.line(last)
        before = self.root + tree.depths
        rows = torch.where(branch, before % self.rows, self.rows)
        self.distributions[self.image, rows] = log_p
        position = before + 1
        self.reached.copy_(position.gather(1, last).maximum(self.reached))
        self.root += accepted + 1
        self._forget()

    def commit(self, decided: Decided) -> None:
        pass

    def select(self, images: list[int]) -> None:
        self.distributions = self.distributions[images]
        self.root, self.reached = self.root[images], self.reached[images]
        self.image = self.image[: len(images)]
        self._forget()

    def _distributions(self, position: Tensor) -> Tensor:
        """Return predictions (images, n, vocab) at positions (images, n); any past the end."""
        rows = (self._source(position) - 1).fmod(self.rows)  # -1, the last row, for position 0
        return self.distributions[self.image, rows]

    def _source(self, position: Tensor) -> Tensor:
        """Return the position whose prediction stands for each position (images, n)."""
        if self.guess == "above":
            columns = self.grid.columns
            beyond = (position - self.reached).add(columns - 1)
            rows = beyond.div(
                columns, rounding_mode="floor"
            )  # to go up until a prediction is known
            above = position - rows * columns
            new = torch.where(above > 0, above, self.reached)
        else:
            new = self.reached if self.guess == "left" else torch.zeros_like(self.reached)
        return torch.where(position <= self.reached, position, new)
