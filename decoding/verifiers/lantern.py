"""Relaxed acceptance: LANTERN (2410.03355), LANTERN++ (2502.06352), also with positional noise.

A child x may take over probability of its nearest codes n_1, n_2, ... in the VQ codebook. With C_m
= p(n_1) + ... + p(n_m), m <= k, and m* the largest m with C_m <= B, x is accepted as if its
probability were p(x) + C_m*. The bound is B = delta (LANTERN, delta <= 1) or B = (lambda - 1) p(x)
(LANTERN++, lambda > 1). So one child that was not drawn moves the distribution by C_m* in total
variation. Children that were drawn from q are accepted with probability (p(x) + C_m*) / q(x).
"""

import numpy as np
from torch import Tensor

from configs.rules import LanternSettings
from decoding.noise import HostNoise
from decoding.verifiers.host import TINY, Array, Choice, ImageTree, Walk, normalised, point_mass


class Lantern(Walk):
    """The published rules: `evaluate_posterior`, and `evaluate_posterior_v1` of drawn children.

    LANTERN 3a56e45. The latter is LANTERN++'s, with a static tree.
    """

    name = "lantern"
    lossless = False
    reads_distributions = True  # where children were drawn

    def __init__(self, settings: LanternSettings, nearest: Tensor):
        """nearest: (codes, n) the codes nearest to every code, nearest first; k are used."""
        self.settings, self.nearest = settings, nearest.cpu().numpy()

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> Choice:
        p, moved, left = tree.p(node), 0.0, 1.0  # shares of p as it is before the first child
        drawn: list[int] = []
        for child in tree.children[node]:
            token = tree.tokens[child]
            q = None if tree.log_q is None else tree.q(node, drawn)
            codes, mass = self._claimed(p, token, self._bound(p[token], moved, left))
            relaxed = p[token] + mass
            if noise.accept(tree.depths[node], token) * (1.0 if q is None else q[token]) < relaxed:
                return child, p
            moved += left * mass
            left = max(left * (1 - relaxed), TINY)
            p = self._rest(p, q, token, codes)
            drawn.append(token)
        return None, p

    def _rest(self, p: Array, q: Array | None, token: int, claimed: Array) -> Array:
        """Return what a refused token leaves of p.

        Without the codes that it claimed, so that what is left is exactly what no child has
        claimed. Published code takes the k + 1 nearest codes instead if the nearest alone fits, and
        goes on with the uniform distribution if none is left (`reference`). From a p that children
        were drawn for, q is taken: there published code leaves those codes out of q.
        """
        reference = self.settings.residual == "reference"
        gone = self.nearest[token] if reference and len(claimed) else claimed  # as wide as k + 1
        if q is None:
            p[token] = p[gone] = 0
        else:
            if reference:
                q[gone] = 0
            p = np.maximum(p - q, 0)
        return np.full(len(p), 1 / len(p)) if reference and not p.any() else normalised(p)

    def judge_greedily(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        """Judge a tree at temperature 0.

        A child is accepted if it is the argmax once its probability is replaced, and the longest
        accepted path counts: of several, that with the first last node in static trees, and that to
        the first leaf in all others, as published code orders them.
        """
        last = {0: 0}  # accepted nodes, and those behind them -> the last accepted one of the path
        for node in sorted(child for children in tree.children for child in children):
            before = last[tree.parents[node]]
            right = before == tree.parents[node] and self._is_argmax(tree, node)
            last[node] = node if right else before
        leaves = [node for node in last if not tree.children[node]]
        ends = sorted(last.values()) if tree.by_rank else [last[leaf] for leaf in sorted(leaves)]
        end = max(ends, key=tree.depths.__getitem__)  # of several the first
        return tree.path_to(end), point_mass(int(tree.log_p[end].argmax()), tree.log_p.shape[1])

    def _is_argmax(self, tree: ImageTree, node: int) -> bool:
        """Return whether a node's token is the argmax with the mass of its neighbours."""
        p, token = tree.p(tree.parents[node]), tree.tokens[node]
        best = int(p.argmax())
        relaxed = p[token] + self._claimed(p, token, self._bound(p[token]))[1]
        return token == best or relaxed > p[best] or (relaxed == p[best] and token < best)

    def _bound(self, p: float, moved: float = 0.0, left: float = 1.0) -> float:
        """Return the bound B for a child of probability p.

        Siblings share delta: of p's mass, earlier ones have taken over `moved`, and `left` remains
        to be decided.
        """
        if self.settings.delta > 1:
            return (self.settings.delta - 1) * p
        if self.settings.budget == "per_candidate":
            return self.settings.delta
        return (self.settings.delta - moved) / left

    def _claimed(self, p: Array, token: int, bound: float) -> tuple[Array, float]:
        """Return the m* codes that a token may take over within the bound, and their mass C_m*."""
        codes = self.nearest[token, : self.settings.k]
        mass = p[codes].cumsum()  # C_1, C_2, ...: never falls
        fitting = int(np.searchsorted(mass, bound, side="right"))  # C_m = B also fits
        return codes[:fitting], mass[fitting - 1] if fitting else 0.0


class LanternCoupled(Lantern):
    """Relaxed acceptance with positional noise; delta = 0 is the exact rule.

    A choice of the target that no child carries may be replaced by a child near it. For children
    that do not depend on the target's noise the distribution moves by the mass of the neighbours,
    so by at most delta; for coupled ones that is measured, not proved.
    """

    name = "lantern_coupled"
    reads_distributions = False

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> Choice:
        # by log p, not by p in fp64: with delta = 0 it has to be the choice of the exact rule
        choice = int((tree.log_p[node] + noise.target(tree.depths[node])).argmax())
        # reversed, so that of children with the same token the first one stays
        drafts = {tree.tokens[child]: child for child in reversed(tree.children[node])}
        p, moved = tree.p(node), 0.0
        if choice in drafts:
            return drafts[choice], p
        free = p.copy()  # no sibling is a neighbour, and neighbourhoods do not overlap
        free[list(drafts)] = 0
        for child in tree.children[node]:
            token = tree.tokens[child]
            codes, mass = self._claimed(free, token, self._bound(p[token], moved))
            if choice in codes:
                return child, p
            free[codes] = 0
            moved += mass
        return None, point_mass(choice, len(p))

    judge_greedily = Walk.judge  # the target's choice is its argmax then, which may be replaced too
