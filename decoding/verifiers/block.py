"""Block verification of a chain of draws (arXiv 2403.10444, algorithm 2).

Tokens of a chain are accepted together: with p_0 = 1 and p_i = min(p_(i-1) P / Q, 1), the first i
of them are with probability h_i = s_i / (s_i + 1 - p_i), where s_i sums max(p_i P - Q, 0), and all
of them with p_n. The longest such block counts. That is traversal verification of a tree without
branches.
"""

from dataclasses import replace

import torch
from torch import Tensor

from decoding.tree import DraftTree
from decoding.verifiers.base import Streams, Verdict
from decoding.verifiers.siblings import older_siblings
from decoding.verifiers.traversal import Traversal


class Block(Traversal):
    """Judges the first draw after every node, which make up a chain; the other nodes are ignored.

    It judges the proposal `sampled`, in trees of fixed shape.
    """

    name = "block"

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        return super().__call__(first_chain(tree), log_p, noise)


def first_chain(tree: DraftTree) -> DraftTree:
    """Return the tree with only the first child of the root, its first child, and so on present."""
    later = older_siblings(tree).any(2)  # (images, 1 + nodes): nodes that an older one precedes
    aside = (tree.visible & later[:, None]).any(2)
    return replace(tree, scores=tree.scores.masked_fill(aside, -torch.inf))
