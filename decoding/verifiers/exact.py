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
    return right_path(tree, right, choices)


def right_path(tree: DraftTree, right: Tensor, choices: Tensor) -> Verdict:
    """Return the verdict of the only right path.

    right: (images, 1 + nodes) which nodes are accepted if their parents are, the root aside.
    choices: (images, 1 + nodes) what follows every node, a draft token or the bonus token.
    """
    if tree.chain:
        # in a chain a node's index is its depth, so the depths are the path
        return Verdict(right[:, 1:].cumprod(1).sum(1), tree.depths, choices)
    # a node has one right child at most, so the deepest right node ends the only right path
    accepted, last = (tree.depths * reached(tree, right)).max(1)
    return path_verdict(tree, accepted, last[:, None], choices)


def reached(tree: DraftTree, right: Tensor) -> Tensor:
    """Return (images, 1 + nodes) bool: which nodes are right, and so are all their ancestors."""
    missed = ~right
    missed[:, 0] = False  # the root is decided already
    return ~(tree.visible & missed[:, None, :]).any(-1)


def path_verdict(tree: DraftTree, accepted: Tensor, last: Tensor, choices: Tensor) -> Verdict:
    """Return the verdict of so many accepted nodes (images,), of which the last is (images, 1)."""
    path = tree.path_to(last).int().argsort(dim=1, descending=True, stable=True)  # then the others
    return Verdict(accepted, path, choices.gather(1, path))
