"""Exact verification with positional noise: any tree gives the tokens of plain decoding.

Since the noise is fixed per position, the target's choice after a prefix is a function of the
prefix. A draft token is right exactly if it is that choice; no chance is left in accepting it.
"""

import torch
from torch import Tensor

from decoding.noise_table import NodeNoise
from decoding.sampling import choose
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict


class Exact:
    """Walks down from the root while a child carries the target's choice.

    The bonus token is the first choice that no child carries.
    """

    name = "exact"
    lossless = True
    on_device = True
    reads_distributions = False

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: NodeNoise) -> Verdict:
        return follow(tree, choose(log_p, noise.target()))


def follow(tree: DraftTree, choices: Tensor) -> Verdict:
    """Return the verdict of the target's choices (images, 1 + nodes) after root and nodes."""
    if tree.nodes == 0:
        root = torch.zeros_like(choices)
        return Verdict(root[:, 0], root, choices)
    right = (tree.tokens == choices.gather(1, tree.parents)) & tree.present
    if tree.chain:
        # in a chain a node's index is its depth, so the depths are the path
        return Verdict(right[:, 1:].cumprod(1).sum(1), tree.depths, choices)
    missed = ~right
    missed[:, 0] = False  # the root is decided already
    reached = ~(tree.visible & missed[:, None, :]).any(-1)  # so are all its ancestors
    # a token has one right child at most, so the deepest right node ends the only right path
    accepted, last = (tree.depths * reached).max(1)
    on_path = tree.path_to(last[:, None])
    path = on_path.int().argsort(dim=1, descending=True, stable=True)  # then other nodes
    return Verdict(accepted, path, choices.gather(1, path))
