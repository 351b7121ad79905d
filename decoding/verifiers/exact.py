"""Exact verification with positional noise: any tree gives the tokens of plain decoding.

Since the noise is fixed per position, the target's choice after a prefix is a function of the
prefix. A draft token is right exactly if it is that choice; no chance is left in accepting it.
"""

import torch
from torch import Tensor

from decoding.sampling import choose
from decoding.tree import DraftTree
from decoding.verifiers.base import Streams, Verdict, follow


class Exact:
    """Walks down from the root while a child carries the target's choice; the bonus token is the
    first choice that no child carries."""

    name = "exact"
    lossless = True
    streams = ("target",)
    reads_distributions = False

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        choices = choose(log_p, noise("target"))  # (images, 1 + nodes)
        if tree.nodes == 0:
            root = torch.zeros_like(choices)
            return Verdict(choices, root[:, 0], root, choices)
        accepted, path = follow(tree, tree.tokens == choices.gather(1, tree.parents))
        return Verdict(choices, accepted, path, choices.gather(1, path))
