"""SpecTr's acceptance of several draws: k-sequential selection (arXiv 2310.15141, algorithm 3).

Of K draws from q, each in turn is accepted with probability min(1, p / (rho q)). Let beta be the
probability that one draw is accepted. With 1 - (1 - beta)^K = rho beta, no token is accepted more
often than p has it; if no draw is accepted, the token is drawn from the rest of p.
"""

import numpy as np

from decoding.noise import HostNoise
from decoding.verifiers.host import Array, Choice, ImageTree, Walk, normalised


class SpecTr(Walk):
    """Judges the proposal `sampled`, in trees of fixed shape; lossless as `Sampled` is.

    The rule is for draws with replacement, but children were drawn without. So a draw repeats an
    earlier token with the probability of all earlier tokens, and else is the next child: K children
    give K draws.
    """

    name = "spectr"
    reads_distributions = True

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> Choice:
        p, children = tree.p(node), tree.children[node]
        if not children:
            return None, p
        q = tree.q(node)
        taken = np.minimum(q, p / selection_ratio(p, q, len(children)))  # q, and it is accepted
        drawn: dict[int, int] = {}  # token -> child
        for draw in range(len(children)):
            u = noise.accept(tree.depths[node], draw)
            # u's interval says which token is drawn, and its place in there whether it is accepted
            floor = 0.0
            for token in sorted(drawn):
                if u < floor + q[token]:
                    width = q[token]
                    break
                floor += q[token]
            else:
                child = children[len(drawn)]
                token, width = tree.tokens[child], 1 - floor
                drawn[token] = child
            if (u - floor) * q[token] < width * taken[token]:
                return drawn[token], p
        beta = taken.sum()
        accepted = 1 - max(1 - beta, 0) ** len(children)
        # where beta is 0, all of `taken` is, so the divisor only has to differ from 0
        return None, normalised(np.maximum(p - accepted / max(beta, 1e-300) * taken, 0))


def selection_ratio(p: Array, q: Array, count: int) -> float:
    """Return rho for so many draws from q."""
    low, high = 1.0, float(count)
    for _ in range(50):  # halvings of the interval that holds rho: to rounding
        middle = (low + high) / 2
        beta = np.minimum(q, p / middle).sum()
        if 1 - max(1 - beta, 0) ** count > middle * beta:
            low = middle
        else:
            high = middle
    return high  # from this side the rest of p is not negative
