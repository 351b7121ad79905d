"""ADT-Tree: adjacency-adaptive dynamical draft trees (arXiv 2512.21857).

Neighbouring parts of an image are similarly hard to predict. So the depth d and the width k of the
next tree start from those of an adjacent tree (initialisation), then move one step by its
acceptance rate alpha: deeper and narrower if alpha >= beta, else shallower and wider (equation 2).

The paper's readable sources give neither beta, l_d, l_k nor the bounds and initial values; they are
settings here.
"""

from random import Random
from typing import NamedTuple

from configs.fields import settled
from configs.methods import AdtSettings, MethodSettings
from decoding.policies.base import Controller
from decoding.policies.dynamic import DynamicTree
from decoding.round import ImageRound, TreeShape
from models.base import ImageGrid


class Grown(NamedTuple):
    """An earlier tree: its planned depth and width, and its acceptance rate alpha."""

    depth: int
    width: int
    acceptance: float


class AdaptiveController:
    """Sets depth and width of one image's next tree: start from an adjacent one, move one step."""

    def __init__(self, settings: AdtSettings, nodes: int, grid: ImageGrid, seed: int):
        self.settings, self.nodes, self.grid = settings, nodes, grid
        self.random = Random(seed)
        # the tree that decided each image position; the prefill decides position 0 without one
        self.trees: list[Grown | None] = [None]
        self.confidence: float | None = None
        self.first = settled(settings.d_init), settled(settings.k_init)
        self.planned = TreeShape(*self.first, nodes)

    def shape(self, position: int) -> TreeShape:
        s = self.settings
        depth, width = self._start(position)
        step = self._step(position)  # +1: deeper and narrower, -1: shallower and wider
        depth = min(max(depth + step * s.l_d, s.d_min), s.d_max)
        width = min(max(width - step * s.l_k, s.k_min), s.k_max)
        self.planned = TreeShape(depth, width, self.nodes)
        return self.planned

    def _start(self, position: int) -> tuple[int, int]:
        """Return the depth and the width (d~, k~) that adaptation starts from."""
        s = self.settings
        if s.init == "random":
            return self.random.randint(s.d_min, s.d_max), self.random.randint(s.k_min, s.k_max)
        tree = None if s.init == "fixed" else self._adjacent(position)
        return self.first if tree is None else tree[:2]

    def _adjacent(self, position: int) -> Grown | None:
        """Return the tree from which the one at `position` starts; None if there is none yet."""
        if self.settings.init == "vertical":
            above = self.grid.above(position)
            return self.trees[above] if above >= 0 else None
        return self.trees[-1]  # the left neighbour, also across the start of a row

    def _step(self, position: int) -> int:
        """Return +1 if the evidence reaches beta, -1 if not, 0 without evidence.

        It is alpha = accepted length / levels of an earlier tree, or that of a control.
        """
        match self.settings.adapt:
            case "none":
                evidence = None
            case "random":
                evidence = self.random.random()
            case "confidence":
                evidence = self.confidence
            case _:
                near = self.settings.alpha == "neighbour"
                tree = self._adjacent(position) if near else self.trees[-1]
                evidence = None if tree is None else tree.acceptance
        if evidence is None:
            return 0
        return 1 if evidence >= self.settings.beta else -1

    def observe(self, outcome: ImageRound) -> None:
        # of the verified levels: planned ones that were pruned could not be accepted
        acceptance = outcome.accepted / max(outcome.depth, 1)
        tree = Grown(self.planned.depth, self.planned.width, acceptance)
        self.trees += [tree] * (outcome.accepted + 1)  # + 1 for the bonus token
        self.confidence = outcome.confidence


class AdaptiveTree(DynamicTree):
    """A dynamic tree whose depth and width are set for every root."""

    name = "adt"

    def __init__(self, settings: AdtSettings, nodes: int, grid: ImageGrid):
        """settings: of the adaptation; nodes: node budget; grid: of an image's tokens."""
        super().__init__(TreeShape(settings.d_max, settings.k_max, nodes))
        self.settings, self.grid = settings, grid

    def controller(self, seed: int) -> Controller:
        return AdaptiveController(self.settings, self.largest.nodes, self.grid, seed)


def adaptive_tree(method: MethodSettings, grid: ImageGrid) -> AdaptiveTree:
    """Build ADT-Tree's policy."""
    assert isinstance(method.own, AdtSettings), "it has the settings of adt"
    return AdaptiveTree(method.own, settled(method.nodes), grid)
