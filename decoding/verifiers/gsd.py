"""Grouped speculative decoding: a draft is judged with the tokens like it (arXiv 2508.07747).

The cluster C of a draft x is x and those of its neighbours in the order of p whose probability is
close to p(x). x is accepted with probability min(1, p(C) / q(C)), where p(C) is the sum over the
cluster. After a refusal the distribution is that of the lossless rule, norm(max(p - q, 0)). The
published code also wants the neighbours' embeddings to be close, by a number that fits one
checkpoint. That condition is left out here.
"""

import numpy as np
from torch import Tensor

from configs.acceptance import GsdSettings
from decoding.verifiers.host import Array
from decoding.verifiers.sampled import Sampled


class Gsd(Sampled):
    """Judges the proposal `sampled`, in trees of fixed shape; with reach 0 it is `Sampled`."""

    name = "gsd"
    lossless = False

    def __init__(self, settings: GsdSettings, nearest: Tensor | None = None):
        self.settings = settings

    def masses(self, p: Array, q: Array, token: int) -> tuple[float, float]:
        cluster = self.cluster(p, token)
        return p[cluster].sum(), q[cluster].sum()

    def cluster(self, p: Array, token: int) -> Array:
        """Return the tokens that are judged with a token, which is one of them."""
        order = np.argsort(-p, kind="stable")
        rank = int((order == token).argmax())
        near = order[max(0, rank - self.settings.reach) : rank + self.settings.reach + 1]
        # with a gap of 0 the token itself stays
        return near[(np.abs(p[near] - p[token]) < self.settings.gap) | (near == token)]
