"""SJD-PAC's rule (arXiv 2603.18599; code 4fbc099): siblings as `sampled`, the longest path counts.

Every node is judged by a number of its own, whether its earlier siblings were accepted or not:
with p / q, where p has lost max(p - q, 0)'s rest at every earlier sibling and q the siblings
themselves. Of the nodes whose whole paths are accepted the first deepest one ends the round. Where
no sibling before has to be refused for the next to count, easily accepted tokens come up too often;
the repaired rule is `sampled`, which stops at the first accepted sibling.
"""

from decoding.noise import HostNoise
from decoding.verifiers.host import Array, HostRule, ImageTree, residual


class SjdPac(HostRule):
    """Judges the proposal `sampled`, in trees of fixed shape."""

    name = "sjd_pac"
    lossless = False
    reads_distributions = True

    def judge(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        left = {}  # node -> what its children have left of p
        pending, last = [0], 0
        while pending:
            node = pending.pop(0)
            if tree.depths[node] > tree.depths[last]:
                last = node
            p = tree.p(node)
            for child, token, q in tree.draws(node):
                # other paths' numbers: a refused position is judged again in a later round
                if noise.accept(0, child) * q[token] < p[token]:
                    pending.append(child)
                p = residual(p, q)
            left[node] = p
        return tree.path_to(last), left[last]
