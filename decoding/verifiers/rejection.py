"""Randomised acceptance of children that were not drawn: the rule of EAGLE-2 (arXiv 2406.16858)."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.sampling import choose
from decoding.tree import DraftTree
from decoding.verifiers.base import Streams, Verdict, verdict
from decoding.verifiers.siblings import Siblings, at, normalised, uniforms, walk


class PointMasses:
    """Judges children that were not drawn: accepts x with probability p(x), else removes it."""

    def __init__(self, distribution: Tensor, noise: Tensor):
        """distribution: (images, vocab) p; noise: (images, vocab) Gumbel numbers of `accept`."""
        self.distribution, self.noise = distribution, noise

    def uniform(self, tokens: Tensor) -> Tensor:
        """Return a uniform number for each token (images,), in fp64."""
        return uniforms(at(self.noise, tokens))

    def visit(self, tokens: Tensor, asked: Tensor) -> Tensor:
        hit = asked & (self.uniform(tokens) < at(self.distribution, tokens))
        self.leave(asked & ~hit, self.distribution.scatter(1, tokens[:, None], 0.0))
        return hit

    def leave(self, refused: Tensor, distribution: Tensor) -> None:
        """Go on with these weights (images, vocab) where a child was refused."""
        self.distribution = torch.where(
            refused[:, None], normalised(distribution), self.distribution
        )


class Rejection:
    """Rejects deterministic children (EAGLE-2); if all are refused, draws from what is left of p.

    It is lossless, since children do not depend on the streams `accept` and `residual`.
    """

    name = "rejection"
    lossless = True
    streams = ("target", "accept", "residual")
    reads_distributions = False
    emptied = "rounding has left no token to draw"

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        accept = noise("accept")
        greedy = accept.shape[-1] == 1
        accept = accept.expand(-1, -1, log_p.shape[-1])

        def siblings_at(node: Tensor) -> Siblings:
            return self.siblings(
                target_distribution(at(log_p, node), greedy), at(accept, node), tree, node
            )

        return self.drawn(tree, log_p, noise, *walk(tree, siblings_at))

    def drawn(
        self,
        tree: DraftTree,
        log_p: Tensor,
        noise: Streams,
        accepted: Tensor,
        path: Tensor,
        distribution: Tensor,
    ) -> Verdict:
        """Return the verdict that draws the bonus token from distribution (images, vocab)."""
        bonus = choose(distribution.log(), at(noise("residual"), at(path, accepted)))
        found = verdict(tree, choose(log_p, noise("target")), accepted, path, bonus)
        complaint = f"--verifier {self.name}: all children were refused and {self.emptied}"
        return replace(found, emptied=(distribution == 0).all(1), complaint=complaint)

    def siblings(
        self, distribution: Tensor, accept: Tensor, tree: DraftTree, node: Tensor
    ) -> Siblings:
        """Return the children of nodes (images,), with p and the noise `accept` (images, vocab)."""
        return PointMasses(distribution, accept)


def target_distribution(log_p: Tensor, greedy: bool) -> Tensor:
    """Return p (images, vocab) in fp64 of log p; at temperature 0 the point mass at the argmax."""
    return (
        F.one_hot(log_p.argmax(-1), log_p.shape[-1]).double()
        if greedy
        else log_p.double().softmax(-1)
    )
