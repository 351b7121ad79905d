"""What a tree policy is: it shapes every round's draft tree and learns from what was accepted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from decoding.transfer import on_device
from decoding.tree import DraftTree

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """Shape of one image's tree.

    depth: levels grown. width: children per expanded node, and expanded nodes per level. nodes:
    node budget of the verified tree. window: greatest depth of foreseen tokens that continue the
    grown nodes. doubt: the power that path probabilities are taken to, above 1 where earlier trees
    promised too much.
    """

    depth: int
    width: int
    nodes: int
    window: int = 0
    doubt: float = 1.0

    @property
    def reach(self) -> int:
        """The depth that no node exceeds."""
        return max(self.depth, self.window)

    def within(self, remaining: int) -> "Shape":
        """Return the shape, cut where the image ends.

        remaining: tokens still to decide; the last of them is the bonus token and needs no draft.
        """
        return replace(
            self, depth=min(self.depth, remaining - 1), window=min(self.window, remaining - 1)
        )


class Outcome(NamedTuple):
    """What a round tells the controller of its image."""

    position: int  # image position of the round's first token
    accepted: int  # accepted length, in draft tokens
    levels: int  # levels of the verified tree, after pruning
    confidence: float  # drafter's mean probability per level along the tree's best path
    expected: float = 0.0  # accepted length that the verified tree's scores promised
    nodes: int = 0  # of the verified tree
    drafted: int = 0  # levels that were grown for it, where the policy sizes trees
    milliseconds: float = 0.0  # of the round, which its batch shares


@dataclass(frozen=True)
class TreePlan:
    """The shapes of a round, one per image of the batch.

    largest: no tree is larger; the batch grows together, to this size. limits: of every image, on
    the device. uniform: whether they all equal `largest`, so that none needs a mask. fixed: whether
    the sizes hold whatever the trees look like, as in a round that is recorded: nobody asks the
    device whether to stop early. ahead: (images, window) log-probabilities that the target chooses
    the foreseen tokens, each given those before; None where no tree is sized by them.
    """

    largest: Shape
    limits: "Limits"
    uniform: bool = False
    fixed: bool = False
    ahead: Tensor | None = None

    @classmethod
    def of(cls, shapes: Sequence[Shape], device: torch.device = CPU) -> "TreePlan":
        """Return the plan of a batch whose images have these shapes."""
        uniform = all(shape == shapes[0] for shape in shapes)
        return cls(largest_of(shapes), Limits.of(shapes, device), uniform)

    @property
    def levels(self) -> int:
        """Levels of the deepest tree."""
        return self.largest.depth

    @property
    def width(self) -> int:
        """The greatest width."""
        return self.largest.width

    @property
    def nodes(self) -> int:
        """The greatest node budget."""
        return self.largest.nodes

    @property
    def window(self) -> int:
        """The greatest depth of foreseen tokens; 0 if no tree has any."""
        return self.largest.window

    def end(self, done: Tensor, level: int) -> "TreePlan":
        """Return the plan in which the images that are `done` (images, 1) stop at this level."""
        depth = torch.where(done, self.limits.depth.clamp(max=level), self.limits.depth)
        return replace(self, limits=replace(self.limits, depth=depth), uniform=False)

    def restrict(self, scores: Tensor, level: int) -> Tensor:
        """Return scores (images, k, c) of a new level, -inf outside an image's own depth and width.

        The plan's greatest width needs no limit: the policy has asked for no more.
        """
        if self.uniform:
            return scores
        width = self.limits.width
        width = width.masked_fill(width >= self.width, max(scores.shape[1:]))
        children = width * (self.limits.depth >= level)
        child = torch.arange(scores.shape[2], device=scores.device) < children
        node = torch.arange(scores.shape[1], device=scores.device) < width
        return scores.masked_fill(~(node[:, :, None] & child[:, None, :]), -torch.inf)


def largest_of(shapes: Sequence[Shape]) -> Shape:
    """Return the smallest shape that holds all of them."""
    columns = zip(*((s.depth, s.width, s.nodes, s.window) for s in shapes), strict=True)
    return Shape(*map(max, columns))


@dataclass(frozen=True)
class Limits:
    """The shapes of a batch's images on the device: (images, 1) each, as `Shape` names them."""

    depth: Tensor
    width: Tensor
    nodes: Tensor
    window: Tensor
    doubt: Tensor  # fp64

    @classmethod
    def of(cls, shapes: Sequence[Shape], device: torch.device = CPU) -> "Limits":
        """Return the limits of some shapes."""
        lines = on_device([list(cls.line(shape)) for shape in shapes], device)
        return cls.unpack(lines.split(1, 1))

    @staticmethod
    @lru_cache
    def line(shape: Shape) -> tuple[int, ...]:
        """Return one image's limits as whole numbers, for a table that is copied in one piece."""
        doubt = int(np.float64(shape.doubt).view(np.int64))
        return shape.depth, shape.width, shape.nodes, shape.window, doubt

    @classmethod
    def unpack(cls, columns: Sequence[Tensor]) -> "Limits":
        """Return the limits in the five columns (images, 1) of a table of such lines."""
        *whole, doubt = columns
        return cls(*whole, doubt.contiguous().view(torch.float64))


class Controller(Protocol):
    """The policy's memory of one image."""

    def shape(self, position: int, remaining: int) -> Shape:
        """Return the shape of the next tree.

        position: image position of its first level. remaining: tokens still to decide.
        """

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round."""


class TreePolicy(Protocol):
    """Decides which nodes are expanded and which are verified."""

    name: str
    largest: Shape  # no tree of it is larger
    sizes_itself: bool  # whether `narrow` shapes the tree, and does not only save work

    def controller(self, seed: int) -> Controller:
        """Return the memory of a new image; `seed` feeds policies that draw random numbers."""

    def branching(self, plan: TreePlan, level: int) -> int:
        """Return how many children each expanded node gets at this level."""

    def select(self, tree: DraftTree, plan: TreePlan, level: int) -> Tensor:
        """Return indices (images, k) of the nodes to expand into this level (1: the root)."""

    def ended(self, tree: DraftTree, plan: TreePlan) -> Tensor | None:
        """Return (images, 1) bool: images that are better off without another level, or need none.

        None where all go on, whatever the tree looks like.
        """

    def prune(self, tree: DraftTree, plan: TreePlan) -> DraftTree:
        """Return the tree to verify; a node that is kept keeps its parent."""


@dataclass(frozen=True)
class FixedController:
    """The same shape in every round, as far as the image goes."""

    fixed: Shape

    def shape(self, position: int, remaining: int) -> Shape:
        return self.fixed.within(remaining)

    def observe(self, outcome: Outcome) -> None:
        pass
