"""Traversal verification, from the leaves to the root (arXiv 2505.12398, algorithm 2).

Rules that go down from the root lose a whole branch with its first refused node. Here a leaf is
accepted with its whole path, by p(v) = min(p(parent) P(v) / Q(v), 1), and p(root) = 1. A refused
leaf leaves the tree: its parent goes on with P' = norm(max(p P - Q, 0)), with Q without the leaf,
and with p' = s / (s + 1 - p), where s is the sum that was normalised. Then the next sibling is
judged or, after the last one, the parent itself. P, Q are the distributions of target and drafter
after the parent.
"""

import numpy as np

from decoding.noise import HostNoise
from decoding.verifiers.host import TINY, Array, HostRule, ImageTree, normalised


class Traversal(HostRule):
    """Judges the proposal `sampled`, in trees of fixed shape; lossless as `Sampled` is.

    Cousins have to be drawn independently, since a branch is refused because of its leaves.
    """

    name = "traversal"
    reads_distributions = True

    def judge(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        accepted = self._accepted(tree, 0, 1.0, noise)
        assert accepted is not None, "the root is never refused"
        return tree.path_to(accepted[0]), accepted[1]

    def _accepted(
        self, tree: ImageTree, node: int, weight: float, noise: HostNoise
    ) -> tuple[int, Array] | None:
        """Return the accepted one of a node and its descendants, and P after it; or None.

        weight: p of the node.
        """
        p = tree.p(node)
        for child, token, q in tree.draws(node):
            chance = min(weight * p[token] / max(q[token], TINY), 1.0)
            if accepted := self._accepted(tree, child, chance, noise):
                return accepted
            weight, p = self.refuse(weight, p, q)
        # a refused position is judged again in a later round: numbers are the round's own
        if node == 0 or noise.accept(0, node) < weight:
            return node, p
        return None

    def refuse(self, weight: float, p: Array, q: Array) -> tuple[float, Array]:
        """Return weight and P of a node, a child of which was refused."""
        rest = np.maximum(weight * p - q, 0)
        total = rest.sum()
        missing = total + 1 - weight  # 0 only if p and q are equal, where nothing is refused
        return total / missing if missing else 0.0, normalised(rest)
