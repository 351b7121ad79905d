"""The walk of all rules but the exact one: down the tree, child after child of a node."""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.transfer import may_ask
from decoding.tree import DraftTree


class Siblings(Protocol):
    """Judges the children of one node per image.

    distribution: (images, vocab) what is left of the target's p, fp64; sums to 1, or to 0 where
    nothing is left.
    """

    distribution: Tensor

    def visit(self, tokens: Tensor, asked: Tensor) -> Tensor:
        """Return (images,) bool: asked (images,), and the child's token (images,) is accepted."""


def walk(
    tree: DraftTree, siblings_at: Callable[[Tensor], Siblings]
) -> tuple[Tensor, Tensor, Tensor]:
    """Descend while a child is accepted.

    Args:
        siblings_at: nodes (images,) -> their children.

    Returns:
        accepted (images,) and path (images, 1 + nodes) of a verdict, and the distribution (images,
        vocab) that is left where the walk ends.
    """
    node = tree.tokens.new_zeros(len(tree.tokens))
    going, accepted, path, distribution = node == 0, node, [node], None
    for _ in range(min(tree.height, tree.nodes) + 1):
        siblings = siblings_at(node)
        child = _first_accepted(tree, node, siblings, going)
        distribution = (
            siblings.distribution
            if distribution is None
            else torch.where(going[:, None], siblings.distribution, distribution)
        )
        going = going & (child > 0)
        if may_ask(going) and not going.any():
            break
        node = torch.where(going, child, node)
        accepted = accepted + going
        path.append(node)
    path = torch.stack(path[: tree.nodes + 1], 1)
    return accepted, F.pad(path, (0, tree.nodes + 1 - path.shape[1])), distribution


def _first_accepted(tree: DraftTree, node: Tensor, siblings: Siblings, going: Tensor) -> Tensor:
    """Return the index (images,) of the first accepted child in the tree's order; 0 for none."""
    children = children_of(tree, node)
    order = children.int().argsort(dim=1, descending=True, stable=True)
    found = torch.zeros_like(node)
    for child in order[:, : tree.nodes if tree.width is None else tree.width].unbind(1):
        asked = going & (found == 0) & at(children, child)
        if may_ask(asked) and not asked.any():
            break
        found = torch.where(siblings.visit(at(tree.tokens, child), asked), child, found)
    return found


def children_of(tree: DraftTree, node: Tensor) -> Tensor:
    """Return (images, 1 + nodes) bool: the children of one node (images,) per image."""
    children = (tree.parents == node[:, None]) & tree.present
    children[:, 0] = False  # the root's parent is the root
    return children


def older_siblings(tree: DraftTree) -> Tensor:
    """Return (images, 1 + nodes, 1 + nodes) bool: [i, a, b] says that b is a sibling before a."""
    siblings = (tree.parents[..., None] == tree.parents[:, None]) & tree.present[:, None]
    siblings[:, :, 0] = False  # the root's parent is the root
    return siblings.tril(-1)


def at(values: Tensor, index: Tensor) -> Tensor:
    """Return values[i, index[i]] of every image i: (images, n, ...) -> (images, ...)."""
    return values[torch.arange(len(index), device=index.device), index]


def normalised(distribution: Tensor) -> Tensor:
    """Return weights (images, n) scaled to sum to 1; rows of zeros stay."""
    total = distribution.sum(1, keepdim=True)
    return distribution / total.masked_fill(total == 0, 1.0)


def uniforms(gumbel: Tensor) -> Tensor:
    """Return the numbers between 0 and 1, in fp64, that Gumbel noise was made from."""
    return torch.exp(-torch.exp(-gumbel.double()))


def node_uniforms(accept: Tensor, tree: DraftTree, name: str) -> Tensor:
    """Return a number between 0 and 1 for every node, (images, 1 + nodes) in fp64.

    They all come from the noise at the first position that a round decides, for rules that may
    judge a position again in a later round.

    accept: (images, 1 + nodes, vocab) of noise. name: of the rule, for the error.

    Raises:
        ValueError: the tree has as many nodes as there are codes, or more.
    """
    if tree.nodes >= accept.shape[-1]:
        found = f"--verifier {name}: found {tree.nodes} nodes and {accept.shape[-1]} codes"
        raise ValueError(f"{found}; allowed: fewer nodes than codes")
    return uniforms(accept[:, 0, : tree.nodes + 1])
