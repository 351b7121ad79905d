"""Exact verification with positional noise: decides the tokens of plain autoregressive decoding, whatever the tree."""

import torch
from torch import Tensor

from decoding.sampling import choose
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict


class Exact:
    """Walks down from the root while a child carries the target's choice; emits the first choice that no child
    carries."""

    name = "exact"
    lossless = True

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Tensor) -> Verdict:
        choices = choose(log_p, noise)  # (images, 1 + nodes)
        if tree.nodes == 0:
            return Verdict(choices, choices.new_zeros(len(choices)), torch.zeros_like(choices), choices)
        hit = (tree.tokens == choices.gather(1, tree.parents)) & tree.present
        hit[:, 0] = True  # the root is decided already
        reached = ~(tree.visible & ~hit[:, None, :]).any(-1)  # all nodes up to the root hit
        depth = tree.depths * reached
        accepted, last = depth.max(1)
        on_path = tree.visible.gather(1, last[:, None, None].expand(-1, 1, tree.nodes + 1)).squeeze(1)
        path = on_path.int().argsort(dim=1, descending=True, stable=True)
        return Verdict(choices, accepted, path, choices.gather(1, path))
