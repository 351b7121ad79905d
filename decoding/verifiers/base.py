"""What a verifier is: it judges a draft tree by the target's distributions and decides tokens."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from decoding.noise_table import NodeNoise
from decoding.tree import DraftTree


@dataclass(frozen=True)
class Verdict:
    """The outcome of a verification."""

    accepted: Tensor  # (images,) accepted length, in draft tokens
    path: Tensor  # (images, 1 + nodes) the root, then the accepted nodes; the rest means nothing
    emitted: Tensor  # (images, 1 + nodes) accepted + 1 tokens, the bonus token last; so is the rest

    def packed(self) -> Tensor:
        """Return the verdict as one tensor (images, 1 + 2 (1 + nodes))."""
        return torch.cat([self.accepted[:, None], self.path, self.emitted], 1)

    @staticmethod
    def unpack(packed: Tensor) -> "Verdict":
        """Return the verdict that was packed."""
        return Verdict(packed[:, 0], *packed[:, 1:].chunk(2, 1))


class Verifier(Protocol):
    """Decides tokens from a tree."""

    name: str
    lossless: bool  # whether decided tokens have exactly the target's distribution
    on_device: bool  # whether it is a function of tensors, without a wait for the device
    # whether trees must carry the drafter's distributions, where children were drawn from them
    reads_distributions: bool

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: NodeNoise) -> Verdict:
        """Return the verdict on a tree; log_p: (images, 1 + nodes, vocab) of the target."""
