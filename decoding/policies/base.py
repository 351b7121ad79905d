"""What a tree policy is: it shapes every round's draft tree and learns from what was accepted."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from decoding.transfer import on_device
from decoding.tree import DraftTree


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


@dataclass(frozen=True)
class Outcome:
    """What a round tells the controller of its image."""

    position: int  # image position of the round's first token
    accepted: int  # accepted length, in draft tokens
    levels: int  # levels of the verified tree, after pruning
    confidence: float  # drafter's mean probability per level along the tree's best path
    expected: float = 0.0  # accepted length that the verified tree's scores promised


@dataclass(frozen=True)
class TreePlan:
    """The shapes of a round, one per image of the batch."""

    shapes: tuple[Shape, ...]

    @property
    def levels(self) -> int:
        """Levels of the deepest tree; the batch grows together."""
        return max(shape.depth for shape in self.shapes)

    @property
    def width(self) -> int:
        """The greatest width."""
        return max(shape.width for shape in self.shapes)

    @property
    def nodes(self) -> int:
        """The greatest node budget."""
        return max(shape.nodes for shape in self.shapes)

    @property
    def window(self) -> int:
        """The greatest depth of foreseen tokens; 0 if no tree has any."""
        return max(shape.window for shape in self.shapes)

    def budgets(self, device: torch.device) -> Tensor:
        """Return (images,) node budgets."""
        return on_device([shape.nodes for shape in self.shapes], device)

    def windows(self, device: torch.device) -> Tensor:
        """Return (images, 1) depths to which foreseen tokens may continue a tree."""
        return on_device([[shape.window] for shape in self.shapes], device)

    def end(self, done: list[bool], level: int) -> "TreePlan":
        """Return the plan in which the images that are `done` grow no level after this one."""
        shapes = zip(self.shapes, done, strict=True)
        return TreePlan(
            tuple(replace(s, depth=min(s.depth, level)) if stop else s for s, stop in shapes)
        )

    @property
    def uniform(self) -> bool:
        """Whether all images have the same shape, so that none needs a mask."""
        return all(shape == self.shapes[0] for shape in self.shapes)

    def restrict(self, scores: Tensor, level: int) -> Tensor:
        """Return scores (images, k, c) of a new level, -inf outside an image's own depth and width.

        The plan's greatest width needs no limit: the policy has asked for no more.
        """
        if self.uniform:
            return scores
        widths = [s.width if s.width < self.width else max(scores.shape[1:]) for s in self.shapes]
        columns = [
            (width if level <= s.depth else 0, width)
            for width, s in zip(widths, self.shapes, strict=True)
        ]
        width = on_device(columns, scores.device)  # (images, 2): children per node, expanded nodes
        child = torch.arange(scores.shape[2], device=scores.device) < width[:, :1]
        node = torch.arange(scores.shape[1], device=scores.device) < width[:, 1:]
        return scores.masked_fill(~(node[:, :, None] & child[:, None, :]), -torch.inf)


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

    def narrow(self, tree: DraftTree, plan: TreePlan) -> TreePlan:
        """Return the plan without levels that an image is better off without, or need not grow."""

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
