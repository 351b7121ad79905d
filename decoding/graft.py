"""Grafting: tokens that are foreseen per position continue every node of a tree.

The exact verifier accepts any proposal, so a tree may join two sources: a short tree of a drafter
that follows paths, and a chain of tokens that another one foresees for the next positions, whatever
tokens come between. One forward pass of the target verifies both.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.kernels import Rounds, steps_for
from decoding.renewal import HALVED, RENEWAL, best_path, renewed_worth
from decoding.tree import DraftTree


@dataclass(frozen=True)
class Foreseen:
    """The tokens foreseen at the next positions, whatever tokens come between.

    tokens: (images, window). hits: (images, window) log-probabilities that the target chooses each,
    given that it chose those before. reach: (images, 1) the greatest depth that a node may have.
    log_q: (images, window, vocab) what they were taken from; None where nobody reads it.
    """

    tokens: Tensor
    hits: Tensor
    reach: Tensor
    log_q: Tensor | None = None

    @property
    def window(self) -> int:
        return self.tokens.shape[1]


def graft(tree: DraftTree, foreseen: Foreseen) -> DraftTree:
    """Return the tree with root and every node continued by the tokens foreseen after it.

    A child that already is the foreseen token takes over its parent's continuation, and the better
    of the two estimates. The continuations come after the tree's own nodes; a policy chooses among
    them by their worth. A node is worth its probability, and more on the best path: there this
    round predicts the window's positions anew, which helps later rounds.

    foreseen: with log q for verifiers that read it; only for a tree without nodes, which is
    continued by a single chain.
    """
    if foreseen.log_q is None and (kernels := steps_for(tree.scores)):
        return _compiled(kernels, tree, foreseen)
    if tree.nodes == 0:
        return _chain(tree, foreseen)
    assert foreseen.log_q is None
    window, count = foreseen.window, tree.nodes + 1
    tree, bare = _agreed(tree, foreseen)
    step = torch.arange(1, window + 1, device=tree.tokens.device)
    depths = (tree.depths[..., None] + step).flatten(1)  # (images, count x window)
    total = F.pad(
        foreseen.hits.cumsum(1).cummin(1).values, (1, 0)
    )  # (images, 1 + window); falls in spite of rounding
    gains = _at(total, depths).unflatten(1, (count, window)) - _at(total, tree.depths)[..., None]
    chains = (tree.scores[..., None] + gains).masked_fill(~bare[..., None], -torch.inf).flatten(1)
    node = torch.arange(count, device=step.device)[:, None]
    parents = torch.cat([node, count + node * window + step[:-1] - 1], 1).flatten()
    grafted = DraftTree(
        torch.cat([tree.tokens, _at(foreseen.tokens, depths - 1)], 1),
        torch.cat([tree.parents, parents.expand(len(depths), -1)], 1),
        torch.cat([tree.depths, depths], 1),
        torch.cat(
            [
                tree.scores,
                chains.masked_fill(depths > foreseen.reach.clamp(max=window), -torch.inf),
            ],
            1,
        ),
        height=max(tree.height, window),
        drafted=tree.drafted,
        width=None if tree.width is None else tree.width + 1,
    )
    return replace(grafted, worth=renewed_worth(grafted, _best_path(tree, window)))


def _compiled(kernels: Rounds, tree: DraftTree, foreseen: Foreseen) -> DraftTree:
    """Return what `graft` does."""
    parts = foreseen.tokens, foreseen.hits, foreseen.reach
    columns, worth = kernels.graft(tree.columns, parts, RENEWAL, HALVED)
    return DraftTree(
        *columns,
        height=max(tree.height, foreseen.window),
        drafted=tree.drafted,
        width=None if tree.width is None else tree.width + 1,
        worth=worth if tree.nodes else None,
    )


def _chain(root: DraftTree, foreseen: Foreseen) -> DraftTree:
    """Return a tree without nodes, continued by the foreseen tokens one after the other."""
    count = foreseen.window + 1
    depths = torch.arange(count, device=root.tokens.device).expand(len(root.tokens), -1)
    # they fall in spite of rounding
    scores = foreseen.hits.cumsum(1).cummin(1).values
    scores = scores.masked_fill(depths[:, 1:] > foreseen.reach, -torch.inf)
    if (distributions := foreseen.log_q) is not None:  # nothing follows the last one
        distributions = torch.cat([distributions, distributions[:, -1:]], 1)
    return DraftTree(
        torch.cat([root.tokens, foreseen.tokens], 1),
        (depths - 1).clamp_(min=0),
        depths,
        torch.cat([root.scores, scores], 1),
        height=foreseen.window,
        drafted=root.drafted,
        width=1,
        distributions=distributions,
    )


def _agreed(tree: DraftTree, foreseen: Foreseen) -> tuple[DraftTree, Tensor]:
    """Return the tree with better estimates of nodes that are foreseen too, and who lacks them.

    The second value, (images, 1 + nodes) bool, marks the nodes without a child that is foreseen.
    """
    own = tree.scores - tree.scores.gather(1, tree.parents)
    agreed = (
        (tree.depths > 0) & (tree.tokens == _at(foreseen.tokens, tree.depths - 1)) & tree.present
    )
    own = torch.where(agreed, own.maximum(_at(foreseen.hits, tree.depths - 1)), own)
    own = own.where(tree.present, -torch.inf)
    scores = own
    for _ in range(tree.height - 1):
        scores = own + scores.gather(1, tree.parents)
    children = torch.zeros_like(tree.parents).scatter_add(1, tree.parents, agreed.long())
    return replace(tree, scores=scores), children == 0


def _best_path(tree: DraftTree, window: int) -> Tensor:
    """Return which nodes lie on the best path to the deepest level, or continue it.

    (images, (1 + nodes) (1 + window)) bool, in the order of a grafted tree.
    """
    leaf, path = best_path(tree)
    own = F.one_hot(leaf, tree.nodes + 1).bool()
    return torch.cat([path, own.repeat_interleave(window, 1)], 1)


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Return values (images, n) at index (images, m); an index beyond an end reads that end."""
    return values.gather(1, index.clamp(0, values.shape[1] - 1))
