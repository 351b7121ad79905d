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
    index = leaf[:, None, None].expand(-1, 1, tree.nodes + 1)
    return leaf, tree.visible.gather(1, index)[:, 0]


def renewed_worth(tree: DraftTree, best: Tensor) -> Tensor:
    """Return the worth of nodes; best: who is on the best path. Both are (images, 1 + nodes)."""
    renewal = RENEWAL * 2 ** -(tree.depths / HALVED).square()
    return tree.scores.exp() + renewal * (best & tree.present)
