"""Static draft trees: fixed lists of rank paths (EAGLE-1, 2401.15077; LANTERN++, 2502.06352)."""

from dataclasses import replace
from functools import cached_property

from torch import Tensor

from decoding.policies.base import Controller, FixedController, Shape, TreePlan
from decoding.transfer import constant
from decoding.tree import DraftTree

# `path:n` gives the node of that rank path n children, of ranks 0 to n - 1; sizes and shapes as
# published.
NAMED_TREES = {
    "mc_sim_7b_63": "root:4 0:3 1:2 2:2 3:1 00:3 01:2 02:2 10:1 000:3 0000:2",
    "mc_sim_7b_63_balanced": "root:3 0:3 1:3 2:2 00:3 01:2 10:2 11:2 000:3 0000:2",
    "naive_extend_57": "root:5 0:4 1:3 2:3 3:2 4:1 00:4 01:3 02:3 03:2 10:2 11:1 20:1 "
    "000:4 001:3 002:2 003:1 010:2 011:1 020:1 0000:3 0001:2 0010:2 0011:1 0020:1",
    "medusa_2_7b_63": "root:10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 00:9 01:4 02:2 03:1 04:1 05:1 "
    "10:3 11:1 20:1 000:4 001:1 002:1 010:1",
    "reverse_balanced_25": "root:3 0:2 1:1 2:1 00:3 01:2 10:1 000:3 001:2 0000:4 0001:3",
    "chain": "root:1 0:1 00:1 000:1 0000:1",
}

RankPath = tuple[int, ...]


def rank_paths(description: str) -> list[RankPath]:
    """Return the nodes that a description lists, sorted by depth, then by rank."""
    paths = []
    for entry in description.split():
        path, children = entry.split(":")
        parent = () if path == "root" else tuple(int(rank) for rank in path)
        paths += [(*parent, rank) for rank in range(int(children))]
    return sorted(paths, key=lambda path: (len(path), path))


class StaticTree:
    """Has the same nodes in every round: a node is named by the ranks on its path from the root."""

    name = "static"
    sizes_itself = False

    def __init__(self, paths: list[RankPath]):
        self.paths = paths

    @cached_property
    def depth(self) -> int:
        return max(map(len, self.paths))

    @cached_property
    def largest(self) -> Shape:
        return Shape(
            self.depth, max(map(self._children, range(1, self.depth + 1))), len(self.paths)
        )

    @cached_property
    def _expanded(self) -> list[list[RankPath]]:
        """The parents of each level's nodes."""
        return [
            sorted({p[:-1] for p in self.paths if len(p) == level})
            for level in range(1, self.depth + 1)
        ]

    @cached_property
    def _index(self) -> dict[RankPath, int]:
        """The index of each rank path in the grown tree.

        There every expanded node of a level has as many children as the widest; `prune` drops those
        that are not listed.
        """
        index, count = {(): 0}, 1
        for level, parents in enumerate(self._expanded, 1):
            children = self._children(level)
            for parent in parents:
                index |= {(*parent, rank): count + rank for rank in range(children)}
                count += children
        return index

    def _children(self, level: int) -> int:
        return 1 + max(path[-1] for path in self.paths if len(path) == level)

    def controller(self, seed: int) -> Controller:
        return FixedController(self.largest)

    def branching(self, plan: TreePlan, level: int) -> int:
        return self._children(level)

    def select(self, tree: DraftTree, plan: TreePlan, level: int) -> Tensor:
        return self._rows(tree, [self._index[parent] for parent in self._expanded[level - 1]])

    def ended(self, tree: DraftTree, plan: TreePlan) -> None:
        return None

    def prune(self, tree: DraftTree, plan: TreePlan) -> DraftTree:
        kept = self._rows(
            tree, [self._index[path] for path in self.paths if len(path) <= plan.levels]
        )
        return replace(tree.keep(kept, tree.scores.gather(1, kept)), by_rank=True)

    @staticmethod
    def _rows(tree: DraftTree, index: list[int]) -> Tensor:
        return constant(tuple(index), tree.tokens.device).expand(len(tree.tokens), -1)
