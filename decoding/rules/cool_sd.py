"""COOL-SD: p / q relaxed by a factor that falls with the depth (arXiv 2601.09212; no code).

The draft at depth i is accepted with f = min(1, w_i p / q), and after a refusal the next token is
drawn from norm(max(p - q f, 0)), which the paper shows to be the best rest. With w_i = 1 the rule
is `sampled`. The schedule falls exponentially, by 0.7 a depth; its offset is not in the sources
that were read, so here it begins at delta and stays at 1 where it would fall below.
"""

import math

import numpy as np

from decoding.noise import HostNoise
from decoding.rules import CoolSettings
from decoding.verifiers.host import Choice, ImageTree, Walk, normalised

FALL = 0.7  # the paper's nu


class CoolSd(Walk):
    """Judges the proposal `sampled`, in trees of fixed shape."""

    name = "cool_sd"
    lossless = False
    reads_distributions = True

    def __init__(self, settings: CoolSettings):
        self.settings = settings

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> Choice:
        depth = tree.depths[node]
        factor = max(1.0, self.settings.delta * math.exp(-FALL * depth))
        p = tree.p(node)
        for child, token, q in tree.draws(node):
            if noise.accept(depth, token) * q[token] < factor * p[token]:
                return child, p
            p = normalised(np.maximum(p - np.minimum(q, factor * p), 0))
        return None, p
