"""Drafts without a drafter: the target's own laws of the rounds before (Jacobi decoding; SJD, arXiv 2410.01699).

A forward pass that verifies a tree also gives the target's law at positions that are not decided yet, behind drafts
that may be wrong. These stale laws propose the next drafts: with the positional noise (proposal `coupled`) their first
candidates are the stale choices themselves (the Gumbel coupling of SCD, arXiv 2510.24211), with `sampled` they are
drawn anew in every round, as in SJD.
"""

import math

import torch
from torch import Tensor

from decoding.drafter import Decided
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from models.base import PromptRows, TargetModel


class JacobiDrafter:
    """Remembers the target's latest law at every position of an image.

    A position that no pass has reached yet starts with the law of the position `above` it, of the last one reached
    (`left`), or with the uniform law (`random`); without a position above it, with that of the last one reached.
    """

    def __init__(self, target: TargetModel, window: int, guess: str):
        """window: positions behind the root that are drafted at most."""
        self.grid, self.codes, self.device = target.grid, target.vocab.size, target.device
        self.dtype = torch.float64 if target.dtype == torch.float64 else torch.float32
        self.window, self.guess = window, guess

    def open(self, images: int, watch: Stopwatch) -> None:
        rows = (
            self.grid.tokens + 2
        )  # the uniform law and a row for what nobody reads stand behind the positions
        self.distributions = torch.full(
            (images, rows, self.codes), -math.log(self.codes), dtype=self.dtype, device=self.device
        )
        self.root = torch.zeros(
            images, 1, dtype=torch.long, device=self.device
        )  # position of the last decided token
        self.reached = torch.zeros_like(
            self.root
        )  # the last position with a law; position 0 has none
        self.image = torch.arange(images, device=self.device)[:, None]

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        self.root[image], self.reached[image] = 0, 0

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        """The stale laws (images, k, vocab) behind nodes (images, k), which know a node's position only."""
        return self.recall(tree, nodes)[0]

    def recall(self, tree: DraftTree, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and whether a pass has reached these positions (images, k)."""
        position = self.root + 1 + tree.depths.gather(1, nodes)
        return self._distributions(position), position <= self.reached

    def foresee(self) -> Tensor:
        """The stale laws (images, window, vocab) of the next positions."""
        return self._distributions(self.root + torch.arange(1, self.window + 1, device=self.device))

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        """Take over the laws along the branch that shares most of the accepted path, the longest of those."""
        accepted, place = (
            verdict.accepted[:, None],
            torch.arange(tree.nodes + 1, device=self.device),
        )
        taken = (
            torch.zeros_like(tree.parents).scatter_add(1, verdict.path, (place <= accepted).long())
            > 0
        )
        shared = (tree.visible & taken[:, None]).sum(
            2
        )  # accepted nodes among a node and its ancestors
        merit = (shared * (tree.height + 1) + tree.depths).masked_fill(~tree.present, -1)
        last = merit.argmax(1)[:, None]
        branch = tree.visible.gather(1, last[..., None].expand(-1, 1, tree.nodes + 1))[:, 0]
        position = self.root + 1 + tree.depths
        nowhere = self.grid.tokens + 1
        self.distributions[
            self.image, torch.where(branch, position, nowhere).clamp(max=nowhere)
        ] = log_p
        self.reached = position.gather(1, last).maximum(self.reached)
        self.root = self.root + accepted + 1

    def commit(self, decided: Decided) -> None:
        pass

    def select(self, images: list[int]) -> None:
        self.distributions, self.root, self.reached = (
            self.distributions[images],
            self.root[images],
            self.reached[images],
        )
        self.image = self.image[: len(images)]

    def _distributions(self, position: Tensor) -> Tensor:
        """Laws (images, n, vocab) at positions (images, n), those behind the image's end being arbitrary."""
        return self.distributions[self.image, self._source(position).clamp(max=self.grid.tokens)]

    def _source(self, position: Tensor) -> Tensor:
        """The row of the table that stands for each position."""
        uniform = self.grid.tokens
        left = torch.where(self.reached > 0, self.reached, uniform)
        if self.guess == "above":
            columns = self.grid.columns
            above = (
                position
                - (position - self.reached).add(columns - 1).div(columns, rounding_mode="floor")
                * columns
            )
            new = torch.where(above > 0, above, left)
        else:
            new = left if self.guess == "left" else torch.full_like(left, uniform)
        return torch.where(position <= self.reached, position, new)
