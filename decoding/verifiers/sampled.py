"""Randomised acceptance of children drawn from q: the rule of EAGLE-1 (arXiv 2401.15077), and
grouped speculative decoding, which judges a draft with the tokens like it (arXiv 2508.07747).
"""

import numpy as np
from torch import Tensor

from configs.acceptance import GsdSettings
from decoding.noise import ImageNoise
from decoding.verifiers.host import Array, Choice, ImageTree, Walk, residual


class Sampled(Walk):
    """Accepts children drawn without replacement from q, each with min(1, p(x) / q(x)).

    If x is refused, p becomes norm(max(p - q, 0)), and x leaves q. It is lossless only if no child
    is dropped after its value was seen, as pruning would do: trees have a fixed shape.
    """

    name = "sampled"
    reads_distributions = True

    def choose_child(self, tree: ImageTree, node: int, noise: ImageNoise) -> Choice:
        p, drawn = tree.p(node), []
        for child in tree.children[node]:
            token, q = tree.tokens[child], tree.q(node, drawn)
            p_mass, q_mass = self.masses(p, q, token)
            # a product, because q is 0 where an earlier sibling had the same token
            if noise.accept(tree.depths[node], token) * q_mass < p_mass:
                return child, p
            p = residual(p, q)
            drawn.append(token)
        return None, p

    def masses(self, p: Array, q: Array, token: int) -> tuple[float, float]:
        """Return what p and q give to a draft; it is accepted with their ratio."""
        return p[token], q[token]


class Gsd(Sampled):
    """Accepts with min(1, p(C) / q(C)), the sums over the cluster C of a draft x.

    C is x and those of its neighbours in the order of p whose probability is close to p(x). The
    published code also wants their embeddings to be close, by a number that fits one checkpoint.
    That condition is left out here.
    """

    name = "gsd"
    lossless = False

    def __init__(self, settings: GsdSettings, nearest: Tensor | None = None):
        self.settings = settings

    def masses(self, p: Array, q: Array, token: int) -> tuple[float, float]:
        order = np.argsort(-p, kind="stable")
        rank = int((order == token).argmax())
        near = order[max(0, rank - self.settings.reach) : rank + self.settings.reach + 1]
        # with a gap of 0 the token itself stays
        cluster = near[(np.abs(p[near] - p[token]) < self.settings.gap) | (near == token)]
        return p[cluster].sum(), q[cluster].sum()
