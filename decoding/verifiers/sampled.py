"""Randomised acceptance of children drawn from q: the rule of EAGLE-1 (arXiv 2401.15077)."""

from decoding.noise import HostNoise
from decoding.verifiers.host import Array, Choice, ImageTree, Walk, residual


class Sampled(Walk):
    """Accepts children drawn without replacement from q, each with min(1, p(x) / q(x)).

    If x is refused, p becomes norm(max(p - q, 0)), and x leaves q. It is lossless only if no child
    is dropped after its value was seen, as pruning would do: trees have a fixed shape.
    """

    name = "sampled"
    reads_distributions = True

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> Choice:
        p = tree.p(node)
        for child, token, q in tree.draws(node):
            p_mass, q_mass = self.masses(p, q, token)
            # a product, because q is 0 where an earlier sibling had the same token
            if noise.accept(tree.depths[node], token) * q_mass < p_mass:
                return child, p
            p = residual(p, q)
        return None, p

    def masses(self, p: Array, q: Array, token: int) -> tuple[float, float]:
        """Return what p and q give to a draft; it is accepted with their ratio."""
        return p[token], q[token]
