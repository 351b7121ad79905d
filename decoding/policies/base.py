"""What a tree policy is: it decides the shape of every round's draft tree and learns from the verdict."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from decoding.transfer import on_device
from decoding.tree import DraftTree


@dataclass(frozen=True)
class Shape:
    """Shape of one image's tree: levels grown, children per expanded node, node budget; how deep a node may stand that
    continues the grown ones by foreseen tokens; and the power that path probabilities are taken to, above 1 where they
    promised too much."""

    depth: int
    width: int
    nodes: int
    window: int = 0
    doubt: float = 1.0

    @property
    def reach(self) -> int:
        """Depth that no node exceeds."""
        return max(self.depth, self.window)

    def within(self, remaining: int) -> "Shape":
        """The shape cut where an image ends, with `remaining` tokens still to decide: the last one needs no draft."""
        return replace(
            self, depth=min(self.depth, remaining - 1), window=min(self.window, remaining - 1)
        )


@dataclass(frozen=True)
class Outcome:
    """What a round tells the controller of its image."""

    position: int  # image position of the round's first token
    accepted: int  # draft tokens on the accepted path
    levels: int  # levels of the verified tree, after pruning
    confidence: float  # drafter's mean probability per level along the tree's best path
    expected: float = 0.0  # accepted draft tokens that the verified tree's scores promised


@dataclass(frozen=True)
class TreePlan:
    """The shapes of a round, one per image of the batch."""

    shapes: tuple[Shape, ...]

    @property
    def levels(self) -> int:
        return max(shape.depth for shape in self.shapes)

    @property
    def width(self) -> int:
        return max(shape.width for shape in self.shapes)

    @property
    def nodes(self) -> int:
        return max(shape.nodes for shape in self.shapes)

    @property
    def window(self) -> int:
        return max(shape.window for shape in self.shapes)

    def budgets(self, device: torch.device) -> Tensor:
        """(images,) node budgets."""
        return on_device([shape.nodes for shape in self.shapes], device)

    def windows(self, device: torch.device) -> Tensor:
        """(images, 1) depths to which foreseen tokens may continue a tree."""
        return on_device([[shape.window] for shape in self.shapes], device)

    def end(self, done: list[bool], level: int) -> "TreePlan":
        """The plan in which some images grow no level behind this one."""
        shapes = zip(self.shapes, done, strict=True)
        return TreePlan(
            tuple(replace(s, depth=min(s.depth, level)) if stop else s for s, stop in shapes)
        )

    @property
    def uniform(self) -> bool:
        return all(shape == self.shapes[0] for shape in self.shapes)

    def restrict(self, scores: Tensor, level: int) -> Tensor:
        """Scores (images, k, c) of a new level with the candidates outside an image's own depth or width set to
        -inf. The plan's own width needs no such limit: the policy has asked for no more."""
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
        """The next tree, whose first level stands at this image position with `remaining` tokens still to decide."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round."""


class TreePolicy(Protocol):
    """Decides which nodes are expanded and which are verified."""

    name: str
    largest: Shape  # the largest tree it can ask for
    sizes_itself: bool  # whether `narrow` decides the tree, and does not only save work

    def controller(self, seed: int) -> Controller:
        """A fresh controller for an image; `seed` feeds policies that draw random numbers."""

    def branching(self, plan: TreePlan, level: int) -> int:
        """Children per expanded node at this level."""

    def select(self, tree: DraftTree, plan: TreePlan, level: int) -> Tensor:
        """Indices (images, k) of the nodes to expand into this level (1: the root's children)."""

    def narrow(self, tree: DraftTree, plan: TreePlan) -> TreePlan:
        """The plan without the deeper levels that an image is better off without, or that cannot change its tree."""

    def prune(self, tree: DraftTree, plan: TreePlan) -> DraftTree:
        """The tree to verify; a kept node keeps its parent."""


@dataclass(frozen=True)
class FixedController:
    """The same shape in every round, as far as the image goes."""

    fixed: Shape

    def shape(self, position: int, remaining: int) -> Shape:
        return self.fixed.within(remaining)

    def observe(self, outcome: Outcome) -> None:
        pass
