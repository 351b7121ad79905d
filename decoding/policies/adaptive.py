"""ADT-Tree: adjacency-adaptive dynamical draft trees (arXiv 2512.21857).

The published sources give neither beta, l_d, l_k nor the bounds and initial values; they are settings here.
"""

from random import Random

from configs.schema import AdtSettings
from decoding.policies.base import Controller, Outcome, Shape
from decoding.policies.dynamic import DynamicTree
from decoding.policies.neighbours import Grown, Neighbours


class AdaptiveController:
    """Depth and width of the next tree of one image: start from an adjacent tree, then move one step (equation 2)."""

    def __init__(self, settings: AdtSettings, nodes: int, columns: int, seed: int):
        self.settings, self.nodes = settings, nodes
        self.random = Random(seed)
        self.neighbours = Neighbours(columns, settings, self.random)
        self.confidence: float | None = None
        self.planned = Shape(settings.d_init, settings.k_init, nodes)

    def shape(self, position: int, remaining: int) -> Shape:
        s = self.settings
        depth, width = self.neighbours.start(position)
        step = self._step(position)  # +1: deeper and narrower, -1: shallower and wider
        depth = min(max(depth + step * s.l_d, s.d_min), s.d_max)
        width = min(max(width - step * s.l_k, s.k_min), s.k_max)
        self.planned = Shape(depth, width, self.nodes)
        return self.planned.within(remaining)

    def _step(self, position: int) -> int:
        evidence = self._evidence(position)
        if evidence is None:
            return 0
        return 1 if evidence >= self.settings.beta else -1

    def _evidence(self, position: int) -> float | None:
        """The number compared with beta: alpha = accepted draft tokens / levels, or a control in its place."""
        match self.settings.adapt:
            case "none":
                return None
            case "random":
                return self.random.random()
            case "confidence":
                return self.confidence
        near = self.settings.alpha == "neighbour"
        tree = self.neighbours.adjacent(position) if near else self.neighbours.previous
        return None if tree is None else tree.acceptance

    def observe(self, outcome: Outcome) -> None:
        acceptance = outcome.accepted / max(outcome.levels, 1)
        self.neighbours.record(
            Grown(self.planned.depth, self.planned.width, acceptance), outcome.accepted + 1
        )
        self.confidence = outcome.confidence


class AdaptiveTree(DynamicTree):
    """A dynamic tree whose depth and width are set anew for every root."""

    name = "adt"

    def __init__(self, settings: AdtSettings, nodes: int, columns: int):
        """settings: the adaptation's numbers; nodes: node budget; columns: image tokens per row."""
        super().__init__(Shape(settings.d_max, settings.k_max, nodes))
        self.settings, self.columns = settings, columns

    def controller(self, seed: int) -> Controller:
        return AdaptiveController(self.settings, self.largest.nodes, self.columns, seed)
