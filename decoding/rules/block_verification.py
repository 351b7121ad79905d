"""Block verification of a chain (arXiv 2403.10444, algorithm 2): `traversal` without branches.

With p_0 = 1 and p_i = min(p_(i-1) P / Q, 1), the first i tokens are accepted together with
probability h_i = s_i / (s_i + 1 - p_i), where s_i sums max(p_i P - Q, 0), and all of them with
p_n. The longest such block counts.
"""

from dataclasses import replace

from decoding.noise import HostNoise
from decoding.rules.traversal import Traversal
from decoding.verifiers.host import Array, ImageTree


class BlockVerification(Traversal):
    """Judges the chain of the first draws after every node; other nodes are ignored."""

    name = "block_verification"

    def judge(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        return super().judge(first_chain(tree), noise)

    def judge_greedily(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        return super().judge_greedily(first_chain(tree), noise)


def first_chain(tree: ImageTree) -> ImageTree:
    """Return the tree with only the first child of every node."""
    return replace(tree, children=[children[:1] for children in tree.children])
