"""PathExplore (arXiv 2606.10492): every path of a tree is judged on its own.

The rule follows every path from the root while its drafts are accepted, each with probability
min(1, p / q), where q lacks the siblings drawn before. The longest path counts. After a refusal
the next token is drawn from norm(max(p - q, 0)), with the whole q. Since several paths try and only
one has to succeed, tokens that are easily accepted come up more often than p says: only a single
chain has the target's distribution.
"""

from decoding.noise import HostNoise
from decoding.verifiers.host import Array, HostRule, ImageTree, residual


class PathExplore(HostRule):
    """Judges the proposal `sampled`, in trees of fixed shape."""

    name = "path_explore"
    lossless = False
    reads_distributions = True

    def judge(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        accepted = self._accepted(tree, 0, noise)
        last = max(sorted(accepted), key=tree.depths.__getitem__)  # of several the first
        p = tree.p(last)
        return tree.path_to(last), residual(p, tree.q(last)) if tree.children[last] else p

    def _accepted(self, tree: ImageTree, node: int, noise: HostNoise) -> list[int]:
        """Return a node and those of its descendants whose whole paths are accepted."""
        accepted, p = [node], tree.p(node)
        for child, token, q in tree.draws(node):
            # a refused position is judged again in a later round: numbers are the round's own
            if noise.accept(0, child) * q[token] < self.mass(tree, child, p):
                accepted += self._accepted(tree, child, noise)
        return accepted

    def mass(self, tree: ImageTree, node: int, p: Array) -> float:
        """Return what is divided by q(x) for a node's token x; p: the distribution before it."""
        return p[tree.tokens[node]]
