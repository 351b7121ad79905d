"""Randomised acceptance of children drawn from q: the rule of EAGLE-1 (arXiv 2401.15077)."""

from decoding.noise import ImageNoise
from decoding.verifiers.host import Choice, ImageTree, Walk, normalised, residual


class Sampled(Walk):
    """Accepts children drawn without replacement from q, each with min(1, p(x) / q(x)).

    If x is refused, p becomes norm(max(p - q, 0)), and x leaves q. It is lossless only if no child
    is dropped after its value was seen, as pruning would do: trees have a fixed shape.
    """

    name = "sampled"
    reads_distributions = True

    def choose_child(self, tree: ImageTree, node: int, noise: ImageNoise) -> Choice:
        p = tree.p(node)
        if not tree.children[node]:
            return None, p
        q = tree.q(node)
        for child in tree.children[node]:
            token = tree.tokens[child]
            if noise.accept(tree.depths[node], token) * q[token] < p[token]:
                return child, p
            p = residual(p, q)
            q[token] = 0
            q = normalised(q)
        return None, p
