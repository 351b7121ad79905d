"""Paths that are judged each on its own: PathExplore and PathRelax (arXiv 2606.10492).

PathExplore follows every path from the root while its drafts are accepted, each with probability
min(1, p / q), where q lacks the siblings drawn before. The longest path counts. After a refusal
the next token is drawn from norm(max(p - q, 0)), with the whole q. Since several paths try and only
one has to succeed, tokens that are easily accepted come up more often than p says: only a single
chain has the target's distribution. PathRelax adds to p(x) a share of what p gives to the other
paths' drafts at that position.
"""

from torch import Tensor

from configs.acceptance import PathSettings
from decoding.noise import ImageNoise
from decoding.verifiers.host import Array, HostRule, ImageTree, residual


class PathExplore(HostRule):
    """Judges the proposal `sampled`, in trees of fixed shape."""

    name = "path_explore"
    lossless = False
    reads_distributions = True

    def judge(self, tree: ImageTree, noise: ImageNoise) -> tuple[list[int], Array]:
        accepted = self._accepted(tree, 0, noise)
        last = max(sorted(accepted), key=tree.depths.__getitem__)  # of several the first
        p = tree.p(last)
        return tree.path_to(last), residual(p, tree.q(last)) if tree.children[last] else p

    def _accepted(self, tree: ImageTree, node: int, noise: ImageNoise) -> list[int]:
        """Return a node and those of its descendants whose whole paths are accepted."""
        accepted = [node]
        if not tree.children[node]:
            return accepted
        p, drawn = tree.p(node), []
        for child in tree.children[node]:
            token, q = tree.tokens[child], tree.q(node, drawn)
            # a refused position is judged again in a later round: numbers are the round's own
            if noise.accept(0, child) * q[token] < self.mass(tree, child, p):
                accepted += self._accepted(tree, child, noise)
            drawn.append(token)
        return accepted

    def mass(self, tree: ImageTree, node: int, p: Array) -> float:
        """Return what is divided by q(x) for a node's token x; p: the distribution before it."""
        return p[tree.tokens[node]]


class PathRelax(PathExplore):
    """PathExplore, where a draft takes over a share of the other paths' probabilities."""

    name = "path_relax"

    def __init__(self, settings: PathSettings, nearest: Tensor | None = None):
        self.settings = settings

    def mass(self, tree: ImageTree, node: int, p: Array) -> float:
        present = [child for children in tree.children for child in children]
        depth = tree.depths[node]
        others = [tree.tokens[n] for n in present if tree.depths[n] == depth and n != node]
        mean = p[others].mean() if others else 0.0
        return super().mass(tree, node, p) + self.settings.delta * mean
