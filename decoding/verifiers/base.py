"""What a verifier is: it compares a draft tree with the target's law and says which tokens are decided."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from decoding.tree import DraftTree


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
    """lossless: whether the decided tokens have exactly the target's law."""

    name: str
    lossless: bool

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Tensor) -> Verdict:
        """Judge a tree by the target's law log_p (images, 1 + nodes, vocab) and its positional noise (same shape, or
        zeros)."""
