"""Static draft trees: fixed lists of rank paths (EAGLE-1, 2401.15077; LANTERN++, 2502.06352)."""

from dataclasses import replace
from functools import cached_property

from torch import Tensor

from configs.fields import settled
from configs.methods import TREES, MethodSettings
from decoding.drafter import TreeDrafter
from decoding.policies.dynamic import LevelPolicy
from decoding.proposals import Proposal
from decoding.round import Round, TreeShape
from decoding.tree import DraftTree, GrowingTree
from models.base import ImageGrid
from support.constants import constant

RankPath = tuple[int, ...]


def rank_paths(description: str) -> list[RankPath]:
    """Return the nodes that a description lists, sorted by depth, then by rank."""
    paths = []
    for entry in description.split():
        path, children = entry.split(":")
        # a digit each: no node with children of its own has a rank above 9
        parent = () if path == "root" else tuple(int(rank) for rank in path)
        paths += [(*parent, rank) for rank in range(int(children))]
    return sorted(paths, key=lambda path: (len(path), path))


class StaticTree(LevelPolicy):
    """Has the same nodes in every round: a node is named by the ranks on its path from the root."""

    name = "static"

    def __init__(self, paths: list[RankPath]):
        self.paths = paths
        self.depth = max(map(len, paths))
        # the parents of each level's nodes
        self.expanded = [
            sorted({path[:-1] for path in paths if len(path) == level})
            for level in range(1, self.depth + 1)
        ]
        # children per expanded node, by level: as many as the widest has
        self.counts = [
            1 + max(path[-1] for path in paths if len(path) == level)
            for level in range(1, self.depth + 1)
        ]
        width = max(*map(len, self.expanded), *self.counts)
        self.largest = TreeShape(self.depth, width, len(paths))

    @cached_property
    def _ranks(self) -> list[dict[RankPath, int]]:
        """The index of each rank path in its level of the grown tree.

        There every expanded node has its level's count of children; `grow` drops unlisted ones.
        """
        levels: list[dict[RankPath, int]] = [{(): 0}]
        for level, parents in enumerate(self.expanded, 1):
            ranks = range(self.counts[level - 1])
            paths = [(*parent, rank) for parent in parents for rank in ranks]
            levels.append({path: index for index, path in enumerate(paths)})
        return levels

    def children(self, level: int, width: int) -> int:
        return self.counts[level - 1]

    def pick(self, tree: GrowingTree, width: int) -> Tensor:
        ranks = self._ranks[tree.height]
        return self._rows(tree, [ranks[parent] for parent in self.expanded[tree.height]])

    def grow(self, round: Round, drafter: TreeDrafter, proposal: Proposal) -> DraftTree:
        tree = self.grow_levels(round, drafter, proposal)
        if not tree.height:  # the image's last token
            return tree.complete()
        # ascending, as `keep` expects: paths are sorted by depth, then by rank
        kept = self._rows(
            tree,
            [
                tree.levels[len(path)].first + self._ranks[len(path)][path]
                for path in self.paths
                if len(path) <= tree.height
            ],
        )
        whole = tree.complete()
        return replace(whole.keep(kept, whole.scores.gather(1, kept)), by_rank=True)

    @staticmethod
    def _rows(tree: GrowingTree, index: list[int]) -> Tensor:
        tokens = tree.newest.tokens
        return constant(tuple(index), tokens.device).expand(len(tokens), -1)


def static_tree(method: MethodSettings, grid: ImageGrid) -> StaticTree:
    """Build the policy of --tree."""
    return StaticTree(rank_paths(TREES[settled(method.tree)]))
