"""Paths that are judged each on its own: PathExplore and PathRelax (arXiv 2606.10492).

PathExplore follows every path from the root while its drafts are accepted, each with probability
min(1, p / q). The longest path counts. After a refusal the next token is drawn from
norm(max(p - q, 0)). Since several paths try and only one has to succeed, tokens that are easily
accepted come up more often than p says: only a single chain has the target's distribution.
PathRelax adds to p(x) a share of what p gives to the other paths' drafts at that position.

A position may be judged again in a later round. So the numbers of a round are all taken from the
noise at the first position that it decides, one for each node.
"""

import torch
from torch import Tensor

from configs.acceptance import PathSettings
from decoding.tree import DraftTree
from decoding.verifiers.base import Streams, Verdict, follow
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.siblings import at, children_of, node_uniforms, normalised


class PathExplore(Rejection):
    """Judges the proposal `sampled`, in trees of fixed shape.

    At temperature 0 a child has to be the target's choice.
    """

    name = "path_explore"
    lossless = False
    reads_distributions = True

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        accept = noise("accept")
        if tree.nodes == 0 or accept.shape[-1] == 1:
            return super().__call__(tree, log_p, noise)
        uniform = node_uniforms(accept, tree, self.name)
        target = log_p.double().softmax(-1)
        draft = tree.distributions.double().softmax(-1)
        drafted = after_parent(tree, draft, tree.tokens[..., None])[..., 0]
        accepted, path = follow(tree, uniform * drafted < self.mass(tree, target))
        last = at(path, accepted)
        p, q = at(target, last), at(draft, last)
        refused = children_of(tree, last).any(1, keepdim=True)
        distribution = torch.where(refused, normalised((p - q).clamp(min=0)), p)
        return self.drawn(tree, log_p, noise, accepted, path, distribution)

    def mass(self, tree: DraftTree, target: Tensor) -> Tensor:
        """Return (images, 1 + nodes) what is divided by q(x) for every node's token x.

        target: (images, 1 + nodes, vocab) p.
        """
        return after_parent(tree, target, tree.tokens[..., None])[..., 0]


class PathRelax(PathExplore):
    """PathExplore, where a draft takes over a share of the other paths' probabilities."""

    name = "path_relax"

    def __init__(self, settings: PathSettings, nearest: Tensor | None = None):
        self.settings = settings

    def mass(self, tree: DraftTree, target: Tensor) -> Tensor:
        drafts = tree.tokens[:, None].expand(-1, tree.nodes + 1, -1)
        mass = after_parent(tree, target, drafts)  # (images, node, draft)
        index = torch.arange(tree.nodes + 1, device=mass.device)
        others = (tree.depths[..., None] == tree.depths[:, None]) & tree.present[:, None]
        others &= index[:, None] != index
        mean = (mass * others).sum(2) / others.sum(2).clamp(min=1)
        return super().mass(tree, target) + self.settings.delta * mean


def after_parent(tree: DraftTree, distributions: Tensor, tokens: Tensor) -> Tensor:
    """Return (images, 1 + nodes, n) what the distributions after the parents give to tokens.

    distributions: (images, 1 + nodes, vocab). tokens: (images, 1 + nodes, n).
    """
    parents = tree.parents[..., None].expand_as(distributions)
    return distributions.gather(1, parents).gather(2, tokens)
