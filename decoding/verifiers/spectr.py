"""SpecTr's acceptance of several draws: k-sequential selection (arXiv 2310.15141, algorithm 3).

Of K draws from q, each in turn is accepted with probability min(1, p / (rho q)). Let beta be the
probability that one draw is accepted. With 1 - (1 - beta)^K = rho beta, no token is accepted more
often than p has it; if no draw is accepted, the token is drawn from the rest of p.
"""

import torch
from torch import Tensor

from decoding.tree import DraftTree
from decoding.verifiers.base import Streams, Verdict
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.siblings import Siblings, at, children_of, normalised, uniforms

_HALVINGS = 50  # of the interval that holds rho
_GREEDY = Rejection()


class Selection:
    """Judges the children of one node per image, all at once: `chosen` is the accepted one's token.

    The rule is for draws with replacement, children were drawn without. So a draw repeats an
    earlier token with the probability of those, and is the next child else: K children give K
    draws.
    """

    def __init__(self, distribution: Tensor, uniform: Tensor, draft: Tensor, children: Tensor):
        """Judge children by the order of their draws.

        Args:
            distribution: (images, vocab) p.
            uniform: (images, n) numbers, one for each of the n draws.
            draft: (images, vocab) q.
            children: (images, n) tokens in the order of their draws; -1 after the last.
        """
        self.draft, self.children = draft, children
        count = (children >= 0).sum(1, keepdim=True)  # K
        taken = torch.minimum(draft, distribution / selection_ratio(distribution, draft, count))
        beta = taken.sum(1, keepdim=True)
        share = (1 - (1 - beta).clamp(min=0) ** count) / beta.masked_fill(beta == 0, 1.0)
        self.chosen = self._select(uniform, taken)
        self.distribution = normalised((distribution - share * taken).clamp(min=0))

    def _select(self, uniform: Tensor, taken: Tensor) -> Tensor:
        """Return the first accepted draw (images,), -1 for none; taken: (images, vocab) q times the
        probability to be accepted.
        """
        seen = torch.zeros_like(self.draft)  # q of the tokens that were drawn
        chosen, new = (
            torch.full_like(self.children[:, 0], -1),
            torch.zeros_like(self.children[:, 0]),
        )
        for draw, u in zip(self.children.T, uniform.T, strict=True):
            below = seen.cumsum(1)
            again = u < below[:, -1]
            repeated = (below <= u[:, None]).sum(1).clamp(max=seen.shape[1] - 1)
            token = torch.where(again, repeated, at(self.children, new).clamp(min=0))
            # what is left of u decides about the draw
            floor = torch.where(again, at(below, token) - at(seen, token), below[:, -1])
            room = torch.where(again, at(seen, token), 1 - below[:, -1])
            accepted = (u - floor) * at(self.draft, token) < room * at(taken, token)
            chosen = torch.where((chosen < 0) & (draw >= 0) & accepted, token, chosen)
            seen = seen.scatter(1, token[:, None], at(self.draft, token)[:, None])
            new = new + ~again
        return chosen

    def visit(self, tokens: Tensor, asked: Tensor) -> Tensor:
        return asked & (tokens == self.chosen)


def selection_ratio(p: Tensor, q: Tensor, count: Tensor) -> Tensor:
    """Return rho (images, 1) for count (images, 1) draws from q; p, q: (images, vocab)."""
    low = torch.ones_like(p[:, :1])
    high = low * count.clamp(min=1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        beta = torch.minimum(q, p / middle).sum(1, keepdim=True)
        more = 1 - (1 - beta).clamp(min=0) ** count > middle * beta
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return high  # from this side the rest of p is not negative


class SpecTr(Rejection):
    """Judges the proposal `sampled`, in trees of fixed shape; lossless as `Sampled` is."""

    name = "spectr"
    reads_distributions = True

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        greedy = noise("accept").shape[-1] == 1  # then children are no draws from q
        return _GREEDY(tree, log_p, noise) if greedy else super().__call__(tree, log_p, noise)

    def siblings(
        self, distribution: Tensor, accept: Tensor, tree: DraftTree, node: Tensor
    ) -> Siblings:
        width = min(tree.nodes if tree.width is None else tree.width, accept.shape[1])
        if tree.nodes == 0:
            return super().siblings(distribution, accept, tree, node)
        own = children_of(tree, node)
        order = own.int().argsort(dim=1, descending=True, stable=True)[:, :width]
        children = tree.tokens.gather(1, order).masked_fill(~own.gather(1, order), -1)
        uniform = uniforms(accept[:, :width])
        draft = at(tree.distributions, node).double().softmax(-1)
        return Selection(distribution, uniform, draft, children)
