"""Grafting: tokens that are predicted per position continue every node of a tree.

The exact verifier accepts any proposal, so a tree may join two sources: a short tree of a drafter
that follows paths, and a chain of tokens predicted for the next positions, whatever tokens come
between. One forward pass of the target verifies both.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.device import arange, constant
from decoding.drafter import Drafter
from decoding.proposals import Calibration, Proposal
from decoding.round import Round
from decoding.tree import DraftTree, GrowingTree
from support.compiler import fused

# Tokens that later rounds save because this round predicts a position anew: REFRESH next to the
# root, half of that HALVED positions on, falling as a Gaussian (measured with windows of 8 to 32).
REFRESH, HALVED = 0.2, 14


@dataclass(frozen=True)
class Chain:
    """The tokens predicted at the next positions."""

    tokens: Tensor  # (images, window)
    log_hits: Tensor  # (images, window) log-probability that each is right if those before it are
    reach: Tensor  # (images, 1) the greatest depth that a node may have
    log_q: Tensor | None = None  # (images, window, vocab) that they were taken from

    @property
    def window(self) -> int:
        return self.tokens.shape[1]

    @property
    def scores(self) -> Tensor:
        """(images, window) of the path of the first tokens; it falls in spite of rounding."""
        return self.log_hits.cumsum(1).cummin(1).values

    def as_tree(self, root: Tensor) -> DraftTree:
        """Return the trees of the chains alone, after roots (images,)."""
        device, log_q = root.device, self.log_q
        depths = arange(self.window + 1, device)
        parents = constant((0, *range(self.window)), device)
        scores = self.scores.masked_fill(depths[1:] > self.reach, -torch.inf)
        if log_q is not None:  # nothing follows the last token
            log_q = F.pad(log_q, (0, 0, 0, 1))
        return DraftTree(
            torch.cat([root[:, None], self.tokens], 1),
            parents.expand(len(root), -1),
            depths.expand(len(root), -1),
            F.pad(scores, (1, 0)),
            height=self.window,
            width=1,
            log_q=log_q,
        )


def continued(
    grown: GrowingTree, round: Round, drafter: Drafter, proposal: Proposal
) -> tuple[DraftTree, Tensor]:
    """Return the trees with what the drafter predicts for the next positions.

    The second value, (images, 1 + nodes), is what verifying each node is worth.
    """
    draft = drafter.predict_ahead(round)
    noise = proposal.noise(round, slice(0, round.shape.window), 1)
    # factors of the calibration were fitted to the levels of trees
    uncalibrated = replace(proposal, calibration=Calibration())
    tokens, log_hits = uncalibrated.children(draft, noise, 1, level=1)
    log_q = draft.log_q if round.keep_q else None
    chain = Chain(tokens[..., 0], log_hits[..., 0], round.inputs.window, log_q)
    if not grown.height:
        tree = chain.as_tree(round.inputs.code)
        return tree, tree.scores
    tree, best = graft(grown.complete(), chain)
    return tree, verify_gain(tree, best)


@fused
def graft(tree: DraftTree, chain: Chain) -> tuple[DraftTree, Tensor]:
    """Return the tree with root and every node continued by the chain's tokens.

    A child that already is the chain's token takes over its parent's continuation, and the better
    of the two estimates. The continuations come after the tree's own nodes.

    The second value is (images, n) bool: who is on the path to the best of the tree's own deepest
    nodes, or continues it.
    """
    window, count = chain.window, tree.nodes + 1
    tree, continued = _agreed(tree, chain)
    depths = (tree.depths[..., None] + arange(window + 1, continued.device)[1:]).flatten(1)
    total = F.pad(chain.scores, (1, 0))  # (images, 1 + window)
    # what the path gains below a node, (images, count, window)
    gains = _at(total, depths).unflatten(1, (count, window)) - _at(total, tree.depths)[..., None]
    scores = (tree.scores[..., None] + gains).masked_fill(continued[..., None], -torch.inf)
    scores = scores.flatten(1).masked_fill(depths > chain.reach.clamp(max=window), -torch.inf)
    node = arange(count, continued.device)[:, None]
    step = arange(window, continued.device)[:-1]
    # the first token continues the node, every other one the token before it: (count, window)
    parents = torch.cat([node, count + node * window + step], 1).flatten()
    grafted = replace(
        tree,
        tokens=torch.cat([tree.tokens, _at(chain.tokens, depths - 1)], 1),
        parents=torch.cat([tree.parents, parents.expand(len(depths), -1)], 1),
        depths=torch.cat([tree.depths, depths], 1),
        scores=torch.cat([tree.scores, scores], 1),
        height=max(tree.height, window),
        width=tree.width + 1,
    )
    leaf = _best_leaf(tree)
    ends = F.one_hot(leaf[:, 0], count).bool().repeat_interleave(window, 1)
    return grafted, torch.cat([_path(tree.parents, leaf, tree.height.bit_length()), ends], 1)


@fused
def verify_gain(tree: DraftTree, best: Tensor) -> Tensor:
    """Return what verifying each node is worth in tokens, for drafters that recall the outcome.

    A node yields its probability. On the best path it yields more: there this round predicts the
    next positions anew, which makes later drafts right more often. No node is worth more than its
    ancestors.

    best: (images, 1 + nodes) bool, which nodes are on the best path.
    """
    refresh = REFRESH * 2 ** -(tree.depths / HALVED).square()
    gain = tree.scores.exp() + refresh * (best & tree.present)
    # A child that is certain may be worth more by rounding. Pruning could then keep it without its
    # parent, and verification would accept what follows no decided token.
    return _over_ancestors(gain, tree, torch.minimum)


def best_path(tree: DraftTree) -> Tensor:
    """Return (images, 1 + nodes) bool: who is on the path to the best of the deepest nodes."""
    return _path(tree.parents, _best_leaf(tree), tree.height.bit_length())


@fused
def _path(parents: Tensor, node: Tensor, doublings: int) -> Tensor:
    """Return what `DraftTree.path_to` does, by pointer jumping.

    So `visible` is not computed for trees that are not pruned yet: with 330 nodes its matrix
    products would take a tenth of a round.
    """
    path, above = node, parents
    for _ in range(doublings):  # each time twice as many ancestors
        path = torch.cat([path, above.gather(1, path)], 1)
        above = above.gather(1, above)
    return torch.zeros_like(above, dtype=torch.bool).scatter_(1, path, True)


def _best_leaf(tree: DraftTree) -> Tensor:
    """Return the best of the deepest nodes (images, 1)."""
    deepest = tree.depths == tree.levels[:, None]
    return tree.scores.masked_fill(~deepest, -torch.inf).argmax(1, keepdim=True)


def _agreed(tree: DraftTree, chain: Chain) -> tuple[DraftTree, Tensor]:
    """Return the tree with better estimates of nodes that are the chain's tokens, too.

    The second value, (images, 1 + nodes) bool, marks the nodes with such a child.
    """
    log_hits = tree.scores - tree.scores.gather(1, tree.parents)
    step = (tree.depths - 1).clamp(0, chain.window - 1)
    predicted = tree.tokens == chain.tokens.gather(1, step)
    inside = (tree.depths > 0) & (tree.depths <= chain.window)
    agreed = inside & predicted & tree.present
    better = log_hits.maximum(chain.log_hits.gather(1, step))
    log_hits = torch.where(agreed, better, log_hits)
    # NaN of a broken drafter must stay, so that it is reported
    log_hits = log_hits.masked_fill(tree.scores == -torch.inf, -torch.inf)
    scores = _over_ancestors(log_hits, tree, torch.add)  # to which the root adds 0
    children = torch.zeros_like(tree.parents).scatter_add(1, tree.parents, agreed.long())
    return replace(tree, scores=scores), children > 0


def _over_ancestors(
    values: Tensor, tree: DraftTree, join: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return values (images, 1 + nodes), each joined with those of its ancestors below the root.

    The root's own may be joined any number of times.
    """
    above = tree.parents
    for _ in range((tree.height - 1).bit_length()):  # each time over twice as many ancestors
        values = join(values, values.gather(1, above))
        above = above.gather(1, above)
    return values


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Return values (images, n) at index (images, m); an index beyond an end reads that end."""
    return values.gather(1, index.clamp(0, values.shape[1] - 1))
