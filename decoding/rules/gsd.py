"""Grouped speculative decoding: judges a draft together with similar tokens (arXiv 2508.07747)."""

import numpy as np

from decoding.rules import GsdSettings
from decoding.verifiers.host import Array
from decoding.verifiers.sampled import Sampled


class Gsd(Sampled):
    """Accepts with min(1, p(C) / q(C)), the sums over the cluster C of a draft x.

    C is x and those of its neighbours in the order of p whose probability is close to p(x). As in
    the published code (GSD 4216c7c), a neighbour less are likelier than x, and the least likely
    tokens, which lack neighbours, are judged alone. That code also wants embeddings to be close, by
    a number that fits one checkpoint. That condition is left out here.
    """

    name = "gsd"
    lossless = False

    def __init__(self, settings: GsdSettings):
        self.settings = settings

    def masses(self, p: Array, q: Array, token: int) -> tuple[float, float]:
        order = np.argsort(-p, kind="stable")
        rank = int((order == token).argmax())
        reach = self.settings.reach if rank + self.settings.reach < len(order) else 0
        near = order[max(0, rank - max(reach - 1, 0)) : rank + reach + 1]
        # with a gap of 0 the token itself stays
        cluster = near[(np.abs(p[near] - p[token]) < self.settings.gap) | (near == token)]
        return p[cluster].sum(), q[cluster].sum()
