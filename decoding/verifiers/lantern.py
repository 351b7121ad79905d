"""Relaxed acceptance: LANTERN (2410.03355), LANTERN++ (2502.06352), also with positional noise.

A child x may take over probability of its nearest codes n_1, n_2, ... in the VQ codebook. With C_m
= p(n_1) + ... + p(n_m), m <= k, and m* the largest m with C_m <= B, x is accepted as if its
probability were p(x) + C_m*. The bound is B = delta (LANTERN, delta <= 1) or B = (lambda - 1) p(x)
(LANTERN++, lambda > 1). So one child moves the distribution by C_m* in total variation.
"""

import torch
from torch import Tensor

from configs.schema import LanternSettings
from decoding.sampling import choose
from decoding.tree import DraftTree
from decoding.verifiers.base import Streams, Verdict, follow, path_to, reached, verdict
from decoding.verifiers.rejection import PointMasses, Rejection
from decoding.verifiers.siblings import Siblings, at, children_of, walk


class Neighbourhoods:
    """Says what a child may take over, by the settings and the table of nearest codes."""

    def __init__(self, settings: LanternSettings, nearest: Tensor):
        """nearest: (codes, n) the codes nearest to every code, nearest first; k are used."""
        self.settings, self.nearest = settings, nearest

    def bound(self, own: Tensor, moved: Tensor | float = 0.0, left: Tensor | float = 1.0) -> Tensor:
        """Return the bound B (images,) for children of probability `own` (images,).

        Siblings share delta: of p's mass, earlier ones have taken over `moved`, and `left` remains
        to be decided.
        """
        if self.settings.delta > 1:
            return (self.settings.delta - 1) * own
        if self.settings.budget == "per_candidate":
            return torch.full_like(own, self.settings.delta)
        return torch.zeros_like(own) + (self.settings.delta - moved) / left

    def of(
        self, distribution: Tensor, tokens: Tensor, bound: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the k nearest codes of tokens (...), which are among the first m*, and C_m* (...).

        distribution: (..., vocab) p; bound: (...) B.
        """
        codes = self.nearest[tokens, : self.settings.k].long()  # (..., k)
        mass = distribution.gather(-1, codes).cumsum(-1)
        within = mass <= bound[..., None]
        return codes, within, (mass * within).amax(-1)


class Relaxed(PointMasses):
    """Judges children by the relaxed rule.

    A refused child leaves p together with the m* codes that it would have taken over, so that what
    is left is exactly what no child has claimed. Published code removes the k + 1 nearest codes
    instead (the setting `reference`).
    """

    def __init__(self, distribution: Tensor, noise: Tensor, near: Neighbourhoods):
        super().__init__(distribution, noise)
        self.near = near
        # shares of p as it was before the first child
        self.moved = distribution.new_zeros(len(distribution))
        self.left = distribution.new_ones(len(distribution))

    def visit(self, tokens: Tensor, asked: Tensor) -> Tensor:
        own = at(self.distribution, tokens)
        codes, within, mass = self.near.of(
            self.distribution, tokens, self.near.bound(own, self.moved, self.left)
        )
        hit = asked & (self.uniform(tokens) < own + mass)
        refused = asked & ~hit
        if self.near.settings.residual == "reference":
            codes = self.near.nearest[tokens].long()  # k + 1 of them
            within = within[:, :1].expand_as(codes)  # all, if the nearest alone fits
        distribution = self.distribution.scatter(1, tokens[:, None], 0.0)
        distribution = distribution.scatter(
            1, codes, distribution.gather(1, codes).masked_fill(within, 0.0)
        )
        self.leave(refused, distribution)
        self.moved = torch.where(refused, self.moved + self.left * mass, self.moved)
        left = (self.left * (1 - own - mass)).clamp(min=torch.finfo(distribution.dtype).tiny)
        self.left = torch.where(refused, left, self.left)
        return hit


class Lantern(Rejection):
    """The published rule, for children that were not drawn.

    At temperature 0 a child is accepted if it is the argmax once its probability is replaced, and
    the longest accepted path counts: of several, that with the first last node in static trees, and
    that to the first leaf in all others.
    """

    name = "lantern"
    lossless = False
    emptied = (
        "no token has probability left, since refused children took their neighbours along; "
        "less does --lantern_residual exact, a smaller --lantern_k or --lantern_delta"
    )

    def __init__(self, settings: LanternSettings, nearest: Tensor):
        self.near = Neighbourhoods(settings, nearest)

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        if noise("target").shape[-1] > 1:
            return super().__call__(tree, log_p, noise)
        choices = choose(log_p, noise("target"))
        longest = follow if tree.by_rank else follow_leaves
        accepted, path = longest(tree, self._likeliest(tree, log_p))
        last = path.gather(1, accepted[:, None])
        return verdict(tree, choices, accepted, path, choices.gather(1, last)[:, 0])

    def siblings(
        self, distribution: Tensor, accept: Tensor, tree: DraftTree, node: Tensor
    ) -> Siblings:
        return Relaxed(distribution, accept, self.near)

    def _likeliest(self, tree: DraftTree, log_p: Tensor) -> Tensor:
        """Return (images, 1 + nodes) bool: the argmax, with their neighbours' mass added."""
        distribution = log_p.gather(1, tree.parents[..., None].expand_as(log_p)).double().exp()
        own = distribution.gather(2, tree.tokens[..., None])[..., 0]
        mass = self.near.of(distribution, tree.tokens, self.near.bound(own))[2]
        best, first = distribution.amax(-1), distribution.argmax(-1)
        relaxed = own + mass
        return (
            (tree.tokens == first) | (relaxed > best) | ((relaxed == best) & (tree.tokens < first))
        )


def follow_leaves(tree: DraftTree, hit: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `follow` does, but of several longest paths that to the first leaf.

    So the published code orders the paths of dynamic trees at temperature 0: a leaf each, by index.
    """
    deepest = (tree.depths * reached(tree, hit))[:, None] * tree.visible  # (images, node, ancestor)
    lengths, last = deepest.max(2)
    children = tree.present.long()
    children[:, 0] = 0  # the root is its own parent
    inner = torch.zeros_like(children).scatter_add(1, tree.parents, children) > 0
    leaf = lengths.masked_fill(inner | ~tree.present, -1).max(1, keepdim=True).indices
    return lengths.gather(1, leaf)[:, 0], path_to(tree, last.gather(1, leaf)[:, 0])


class Substitutes:
    """Takes the child that is the target's choice, else the first one whose m* neighbours hold it.

    The neighbours of siblings do not overlap, and a child is nobody's neighbour.
    """

    def __init__(
        self, distribution: Tensor, choice: Tensor, children: Tensor, near: Neighbourhoods
    ):
        """Judge the children of one node per image.

        Args:
            distribution: (images, vocab) p.
            choice: (images,) the target's.
            children: (images, vocab) bool, the children's tokens.
            near: what a child may take over.
        """
        self.own, self.choice, self.near = distribution, choice, near
        self.distribution = distribution.masked_fill(children, 0.0)  # what can be taken over
        self.moved, self.matched = distribution.new_zeros(len(distribution)), at(children, choice)

    def visit(self, tokens: Tensor, asked: Tensor) -> Tensor:
        bound = self.near.bound(at(self.own, tokens), self.moved)
        codes, within, mass = self.near.of(self.distribution, tokens, bound)
        inside = ((codes == self.choice[:, None]) & within).any(1)
        self.distribution = self.distribution.scatter(
            1, codes, self.distribution.gather(1, codes).masked_fill(within, 0.0)
        )
        self.moved = self.moved + mass
        return asked & ((tokens == self.choice) | (inside & ~self.matched))


class LanternCoupled:
    """Relaxed acceptance with positional noise; delta = 0 is the exact rule.

    A choice of the target that no child carries may be replaced by a child near it. For children
    that do not depend on the target's noise the distribution moves by the mass of the neighbours,
    so by at most delta; for coupled ones that is measured, not proved.
    """

    name = "lantern_coupled"
    lossless = False
    streams = ("target",)
    reads_distributions = False

    def __init__(self, settings: LanternSettings, nearest: Tensor):
        self.near = Neighbourhoods(settings, nearest)

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        choices = choose(log_p, noise("target"))

        def siblings_at(node: Tensor) -> Siblings:
            distribution = at(log_p, node).double().softmax(-1)
            own = children_of(tree, node).to(distribution)
            children = torch.zeros_like(distribution).scatter_add(1, tree.tokens, own) > 0
            return Substitutes(distribution, at(choices, node), children, self.near)

        accepted, path, _ = walk(tree, siblings_at)
        return verdict(tree, choices, accepted, path, at(choices, at(path, accepted)))
