"""Initialisation of ADT-Tree: which earlier tree of the same image the next one starts from (arXiv 2512.21857)."""

from dataclasses import dataclass
from random import Random

from configs.schema import AdtSettings


@dataclass(frozen=True)
class Grown:
    """A tree of the past: the depth and width it was planned with, and the acceptance rate it came to."""

    depth: int
    width: int
    acceptance: float


class Neighbours:
    """The trees that decided each position of an image so far."""

    def __init__(self, columns: int, settings: AdtSettings, random: Random):
        self.columns, self.settings, self.random = columns, settings, random
        self.trees: list[Grown | None] = [
            None
        ]  # per image position; the prefill decides position 0 without a tree

    def record(self, tree: Grown, decided: int) -> None:
        """`tree` has decided the next `decided` positions."""
        self.trees += [tree] * decided

    @property
    def previous(self) -> Grown | None:
        """The previous round's tree: the left neighbour, also across the start of a row."""
        return self.trees[-1]

    def adjacent(self, position: int) -> Grown | None:
        """The tree from which the tree at `position` starts; None where there is none yet."""
        if self.settings.init == "vertical":
            return self.trees[position - self.columns] if position >= self.columns else None
        return self.previous

    def start(self, position: int) -> tuple[int, int]:
        """The depth and width (d~, k~) that adaptation starts from."""
        s = self.settings
        if s.init == "random":
            return self.random.randint(s.d_min, s.d_max), self.random.randint(s.k_min, s.k_max)
        tree = None if s.init == "fixed" else self.adjacent(position)
        return (s.d_init, s.k_init) if tree is None else (tree.depth, tree.width)
