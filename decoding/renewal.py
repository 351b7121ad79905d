"""What a node is worth to later rounds, where these recall what the target predicts after it.

A node is worth the tokens that it yields: its probability. On the best path it is worth more: there
this round predicts the next positions anew, which makes later drafts right more often.
"""

import torch
from torch import Tensor

from decoding.tree import DraftTree

# Tokens that later rounds save because this round predicts a position anew: RENEWAL next to the
# root, half of that HALVED positions on, falling as a Gaussian (measured with windows of 8 to 32).
RENEWAL, HALVED = 0.2, 14


def best_path(tree: DraftTree) -> tuple[Tensor, Tensor]:
    """Return the best of the deepest nodes (images,), and who is on the path to it.

    The second value is (images, 1 + nodes) bool.
    """
    leaf = tree.scores.masked_fill(tree.depths < tree.levels[:, None], -torch.inf).argmax(1)
    return leaf, _line(tree, leaf[:, None])


def _line(tree: DraftTree, node: Tensor) -> Tensor:
    """Return what `tree.line` does, for a tree that has grown large and was not yet pruned.

    Pointer jumping, so that nobody asks what each of its nodes sees: with 330 nodes that takes 3.5
    ms on one core (matrix products), a tenth of a round.
    """
    nodes, above = node, tree.parents
    for _ in range(tree.height.bit_length()):  # each time twice as many ancestors are known
        nodes = torch.cat([nodes, above.gather(1, nodes)], 1)
        above = above.gather(1, above)
    return torch.zeros_like(tree.present).scatter_(1, nodes, True)


def renewed_worth(tree: DraftTree, best: Tensor) -> Tensor:
    """Return the worth of nodes; best: who is on the best path. Both are (images, 1 + nodes)."""
    renewal = RENEWAL * 2 ** -(tree.depths / HALVED).square()
    return tree.scores.exp() + renewal * (best & tree.present)
