"""What a verifier is: it compares a draft tree with the target's law and says which tokens are decided."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from decoding.tree import DraftTree

Streams = Callable[
    [str], Tensor
]  # role -> noise behind every node (images, 1 + nodes, vocab), or (…, 1) zeros


@dataclass(frozen=True)
class Verdict:
    """The outcome of a verification.

    choices: (images, 1 + nodes) the target's token behind the root and behind every node, accepted or not.
    accepted: (images,) draft tokens on the accepted path.
    path: (images, 1 + nodes) tree indices of the root and the accepted nodes in order; those behind mean nothing.
    emitted: (images, 1 + nodes) the decided tokens; the first accepted + 1 count, the last of them is the bonus token.
    """

    choices: Tensor
    accepted: Tensor
    path: Tensor
    emitted: Tensor


class Verifier(Protocol):
    """lossless: whether the decided tokens have exactly the target's law. streams: the roles of noise that it reads,
    `target` among them. reads_laws: whether trees have to carry the drafter's laws."""

    name: str
    lossless: bool
    streams: tuple[str, ...]
    reads_distributions: bool

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        """Judge a tree by the target's law log_p (images, 1 + nodes, vocab) and positional noise."""


def follow(tree: DraftTree, hit: Tensor) -> tuple[Tensor, Tensor]:
    """accepted and path of the longest path, the first of several, whose nodes all are hits (images, 1 + nodes)."""
    missed = ~(hit & tree.present)
    missed[:, 0] = False  # the root is decided already
    reached = ~(tree.visible & missed[:, None, :]).any(-1)  # all nodes up to the root hit
    accepted, last = (tree.depths * reached).max(1)
    on_path = tree.visible.gather(1, last[:, None, None].expand(-1, 1, tree.nodes + 1)).squeeze(1)
    return accepted, on_path.int().argsort(dim=1, descending=True, stable=True)


def verdict(
    tree: DraftTree, choices: Tensor, accepted: Tensor, path: Tensor, bonus: Tensor
) -> Verdict:
    """The verdict that emits the tokens of the accepted path and then bonus (images,)."""
    drafted = F.pad(tree.tokens.gather(1, path)[:, 1:], (0, 1))
    return Verdict(choices, accepted, path, drafted.scatter(1, accepted[:, None], bonus[:, None]))
