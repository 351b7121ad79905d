"""What a verifier is: it judges a draft tree by the target's distributions and decides tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from decoding.tree import DraftTree

# role -> noise at the position after every node: (images, 1 + nodes, vocab), or (…, 1) zeros
Streams = Callable[[str], Tensor]


@dataclass(frozen=True)
class Verdict:
    """The outcome of a verification.

    choices: (images, 1 + nodes) the target's token after the root and every node, accepted or not.
    accepted: (images,) accepted length, in draft tokens.
    path: (images, 1 + nodes) tree indices of the root and the accepted nodes in order; what comes
    after these means nothing.
    emitted: (images, 1 + nodes) the decided tokens; the first accepted + 1 are valid, the last of
    them is the bonus token.
    emptied: (images,) bool where no token was left to draw, for rules to which that may happen;
    complaint: what to say then. The round reads it with its figures.
    figures: (images, 7 + 2 (1 + nodes)) fp64, for every image accepted length, 1 or 2 if a score of
    the tree or a distribution of the target is NaN, and what `RoundFigures` has: drafted (0 until
    they are read), levels, nodes, confidence, expected, codes, top1. None if nobody has looked for
    them yet.
    """

    choices: Tensor
    accepted: Tensor
    path: Tensor
    emitted: Tensor
    emptied: Tensor | None = None
    complaint: str = ""
    figures: Tensor | None = None


class Verifier(Protocol):
    """Decides tokens from a tree.

    lossless: whether the decided tokens have exactly the target's distribution. streams: the roles
    of noise that it reads, `target` among them. reads_distributions: whether trees must carry the
    drafter's distributions.
    """

    name: str
    lossless: bool
    streams: tuple[str, ...]
    reads_distributions: bool

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        """Return the verdict on a tree; log_p: (images, 1 + nodes, vocab) of the target."""


def follow(tree: DraftTree, hit: Tensor) -> tuple[Tensor, Tensor]:
    """Return `accepted` and `path` of a verdict: the longest path whose nodes are all hits.

    hit: (images, 1 + nodes) bool. Of several longest paths the first one counts.
    """
    accepted, last = (tree.depths * reached(tree, hit)).max(1)
    return accepted, path_to(tree, last)


def reached(tree: DraftTree, hit: Tensor) -> Tensor:
    """Return (images, 1 + nodes) bool: nodes that are hits, as all their ancestors are."""
    missed = ~(hit & tree.present)
    missed[:, 0] = False  # the root is decided already
    if tree.chain:
        return missed.cumsum(1) == 0
    return ~(tree.visible & missed[:, None, :]).any(-1)


def path_to(tree: DraftTree, last: Tensor) -> Tensor:
    """Return the `path` of a verdict whose last accepted nodes are `last` (images,)."""
    if tree.chain:
        return tree.depths
    return tree.line(last[:, None]).int().argsort(dim=1, descending=True, stable=True)


def verdict(
    tree: DraftTree, choices: Tensor, accepted: Tensor, path: Tensor, bonus: Tensor
) -> Verdict:
    """Return the verdict that emits the tokens of the accepted path, then bonus (images,)."""
    drafted = F.pad(tree.tokens.gather(1, path)[:, 1:], (0, 1))
    return Verdict(choices, accepted, path, drafted.scatter(1, accepted[:, None], bonus[:, None]))
