"""Traversal verification: from the leaves to the root (arXiv 2505.12398, algorithm 2).

Rules that go down from the root lose a whole branch with its first refused node. Here a leaf is
accepted with its whole path, by p(v) = min(p(parent) P(v) / Q(v), 1), and p(root) = 1. A refused
leaf leaves the tree: its parent goes on with P' = norm(max(p P - Q, 0)), with Q without the leaf,
and with p' = s / (s + 1 - p), where s is the sum that was normalised. Then the next sibling is
judged or, after the last one, the parent itself. P, Q are the distributions of target and drafter
after the parent.

Positions whose nodes are refused are judged again in later rounds. So the numbers of a round are
all taken from the noise at the first position that it decides, one for each node.
"""

import torch
from torch import Tensor

from decoding.tree import DraftTree
from decoding.verifiers.base import Streams, Verdict, path_to
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.siblings import at, node_uniforms, normalised, older_siblings


class Journey:
    """The state of a traversal of one tree per image.

    target, draft: (images, 1 + nodes, vocab) P and Q after every node, as they are now. weight:
    (images, 1 + nodes) p of the nodes that were reached. found: (images,) the accepted node.
    """

    def __init__(self, tree: DraftTree, log_p: Tensor):
        self.tree, self.image = tree, torch.arange(len(log_p), device=log_p.device)
        self.target = log_p.double().softmax(-1)
        self.draft = tree.distributions.double().softmax(-1)
        self.weight = torch.ones_like(self.target[..., 0])
        self.found = torch.zeros_like(tree.tokens[:, 0])
        self.going = self.found == 0

    def enter(self, node: Tensor, arrives: Tensor) -> None:
        """Reach nodes (images,) from their parents, where arrives (images,) says so."""
        parent, token = at(self.tree.parents, node), at(self.tree.tokens, node)
        p, q = self.target[self.image, parent, token], self.draft[self.image, parent, token]
        weight = (at(self.weight, parent) * p / q.clamp(min=torch.finfo(q.dtype).tiny)).clamp(max=1)
        self.weight[self.image, node] = torch.where(arrives, weight, at(self.weight, node))

    def judge(self, node: Tensor, uniform: Tensor, leaves: Tensor) -> None:
        """Accept nodes (images,) without children, or take them out, where leaves says so.

        uniform: (images,) numbers.
        """
        asked = leaves & self.going
        hit = asked & (uniform < at(self.weight, node))
        self.found, self.going = torch.where(hit, node, self.found), self.going & ~hit
        self._refuse(node, asked & ~hit)

    def _refuse(self, node: Tensor, refused: Tensor) -> None:
        parent, token = at(self.tree.parents, node), at(self.tree.tokens, node)
        p, q, weight = at(self.target, parent), at(self.draft, parent), at(self.weight, parent)
        rest = (weight[:, None] * p - q).clamp(min=0)
        total = rest.sum(1)
        missing = total + 1 - weight  # 0 only if p and q are equal, where nothing is refused
        kept = total / missing.masked_fill(missing == 0, 1.0)
        drawn = normalised(q.scatter(1, token[:, None], 0.0))
        for state, new in ((self.target, normalised(rest)), (self.draft, drawn)):
            state[self.image, parent] = torch.where(refused[:, None], new, at(state, parent))
        self.weight[self.image, parent] = torch.where(refused, kept, weight)


def tour(tree: DraftTree) -> tuple[Tensor, Tensor]:
    """Return the walk around a tree, (images, 2 nodes) twice: nodes, and whether they are left.

    A node is entered, then its children are entered and left in their order, then it is left.
    Absent nodes, and what comes after the walk, are the root.
    """
    present = tree.present.clone()
    present[:, 0] = True
    size = (tree.visible & present[..., None]).sum(1)  # (images, 1 + nodes) with descendants
    before = 1 + (older_siblings(tree) * size[:, None]).sum(2)
    place = torch.zeros_like(before)  # in the order in which nodes are entered
    for depth in range(1, tree.height + 1):
        place = torch.where(tree.depths == depth, place.gather(1, tree.parents) + before, place)
    entered = 2 * place - tree.depths - 1
    left = entered + 2 * size - 1
    steps = 2 * tree.nodes
    nodes = torch.zeros(len(size), steps + 1, dtype=torch.long, device=size.device)
    leaving = torch.zeros_like(nodes)
    index = torch.arange(tree.nodes + 1, device=size.device).expand_as(place)
    for times, value in ((entered, 0), (left, 1)):
        there = times.masked_fill(~present | (index == 0), steps)
        nodes.scatter_(1, there, index)
        leaving.scatter_(1, there, torch.full_like(there, value))
    return nodes[:, :steps], leaving[:, :steps].bool()


class Traversal(Rejection):
    """Judges the proposal `sampled`, in trees of fixed shape; lossless as `Sampled` is."""

    name = "traversal"
    reads_distributions = True

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        accept = noise("accept")
        if tree.nodes == 0 or accept.shape[-1] == 1:
            return super().__call__(tree, log_p, noise)
        uniform = node_uniforms(accept, tree, self.name)
        journey = Journey(tree, log_p)
        nodes, leaving = tour(tree)
        for node, out in zip(nodes.T, leaving.T, strict=True):
            inside = node > 0
            journey.enter(node, inside & ~out)
            journey.judge(node, at(uniform, node), inside & out)
        distribution = at(journey.target, journey.found)
        accepted, path = at(tree.depths, journey.found), path_to(tree, journey.found)
        return self.drawn(tree, log_p, noise, accepted, path, distribution)
