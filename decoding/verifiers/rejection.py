"""Randomised acceptance of children that were not drawn: the rule of EAGLE-2 (arXiv 2406.16858)."""

from decoding.noise import HostNoise
from decoding.verifiers.host import Choice, ImageTree, Walk, normalised


class Rejection(Walk):
    """Accepts a child x with probability p(x), else takes x out of p.

    It is lossless with any children that do not depend on the streams `accept` and `residual`.
    """

    name = "rejection"

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> Choice:
        p = tree.p(node)
        for child in tree.children[node]:
            token = tree.tokens[child]
            if noise.accept(tree.depths[node], token) < p[token]:
                return child, p
            p[token] = 0
            p = normalised(p)
        return None, p
