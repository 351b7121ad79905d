"""What a tree policy is: it shapes every round's draft tree and learns from what was accepted."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from decoding.device import arange
from decoding.drafter import Draft, Drafter
from decoding.graphs import TreeShape
from decoding.proposals import Proposal
from decoding.round import Round
from decoding.tree import DraftTree, GrowingTree


class Outcome(NamedTuple):
    """What a round tells the controller of its image."""

    position: int  # image position of the round's first token
    accepted: int  # accepted draft tokens
    levels: int  # of the verified tree, after pruning
    confidence: float  # drafter's mean probability per level along the tree's best path


class Controller(Protocol):
    """The policy's memory of one image."""

    def shape(self, position: int, remaining: int) -> TreeShape:
        """Return the shape of the next tree.

        position: image position of its first level. remaining: tokens still to decide.
        """

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round."""


def within(shape: TreeShape, remaining: int) -> TreeShape:
    """Return the shape cut at the end of the image, whose last token is a bonus token."""
    last = remaining - 1
    return shape._replace(depth=min(shape.depth, last), window=min(shape.window, last))


@dataclass(frozen=True)
class FixedController:
    """The same shape in every round, as far as the image goes."""

    fixed: TreeShape

    def shape(self, position: int, remaining: int) -> TreeShape:
        return within(self.fixed, remaining)

    def observe(self, outcome: Outcome) -> None:
        pass


class TreePolicy(Protocol):
    """Shapes draft trees and grows them."""

    name: str
    largest: TreeShape  # no tree is larger

    def controller(self, seed: int) -> Controller:
        """Return the memory of a new image; `seed` feeds policies that draw random numbers."""

    def grow(self, round: Round, drafter: Drafter, proposal: Proposal) -> DraftTree:
        """Return the trees that a round verifies."""


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
            tokens, log_hits = children_of(draft, proposal, round, level, count)
            log_hits = within_limits(log_hits, round, level)
            tree = tree.extend(picked, tokens, log_hits, draft.log_q if round.keep_q else None)
        return tree

    def pick(self, tree: GrowingTree, width: int) -> Tensor:
        """Return the nodes (images, k) of the newest level to expand, by their index in it."""
        raise NotImplementedError

    def children(self, level: int, width: int) -> int:
        """Return how many children each expanded node gets at this level."""
        return width


def children_of(
    draft: Draft, proposal: Proposal, round: Round, level: int, count: int
) -> tuple[Tensor, Tensor]:
    """Return so many children of each node of a draft, as `Proposal.children` does."""
    if draft.children is not None:
        tokens, log_hits = draft.children
        return tokens[..., :count], log_hits[..., :count]
    noise = proposal.noise(round, level, draft.log_q.shape[1])
    return proposal.children(draft, noise, count, level)


def within_limits(log_hits: Tensor, round: Round, level: int) -> Tensor:
    """Return log_hits (images, k, c) of a new level, -inf outside an image's depth and width."""
    if round.shape.uniform:
        return log_hits
    device, (_, k, c) = log_hits.device, log_hits.shape
    width = round.inputs.width * (round.inputs.depth >= level)  # (images, 1)
    inside = (arange(k, device) < width)[:, :, None] & (arange(c, device) < width)[:, None]
    return log_hits.masked_fill(~inside, -torch.inf)
