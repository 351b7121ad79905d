"""Proposals: how the children of a node are taken from the drafter's distribution q.

A tree ranks candidates by a value, log q or log q plus noise, and needs an estimate of the
probability that the target chooses each of them. It changes the shape of trees, never the decided
tokens.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from decoding.device import arange
from decoding.drafter import Draft
from decoding.round import Round
from support.compiler import fused

# Candidates that estimates of `coupled` drafts compare; a fixed number, since that of a node's
# children depends on the other images of the batch.
COMPARED = 3


class Proposal(Protocol):
    """Chooses candidates for the next token, and estimates how likely the target chooses each."""

    name: str
    samples: bool  # whether candidates are drawn anew in every round, with noise of their own

    def noise(self, round: Round, levels: slice, nodes: int) -> Tensor | None:
        """Return the noise (images, n, vocab) that children are taken with; None for none.

        n is the number of levels, of one node each, or that of nodes on one level; 1 where these
        share their noise. At temperature 0 it is zeros, with 1 in place of vocab.

        levels: of the children, from 0.
        """

    def children(self, draft: Draft, noise: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
        """Return candidates (images, k, count), best first, and their estimated log-probabilities.

        An estimate of -inf stands where there is no candidate.

        Args:
            draft: of k nodes.
            noise: as returned by `noise`.
            count: candidates per node.
        """


@dataclass(frozen=True)
class TopK:
    """Takes the likeliest tokens under q (EAGLE-2, arXiv 2406.16858); the estimate is q itself."""

    name = "topk"
    samples = False

    def noise(self, round: Round, levels: slice, nodes: int) -> None:
        return None

    def children(self, draft: Draft, noise: None, count: int) -> tuple[Tensor, Tensor]:
        return _best(draft.log_q, count)


@dataclass(frozen=True)
class Coupled:
    """Takes the best tokens by log q + G, where G is the noise that the target will choose with.

    The first candidate is what the target chooses if q equals its p. The estimate is a softmax of
    the noisy values of the best `COMPARED`: the probability to win against these after one more
    Gumbel disturbance of every value, which stands for the difference between q and p. Other codes
    have no share: with one, estimates promise the more the deeper a node stands
    (docs/results/tokens.md). It alone heeds the drafter's trust: where q nears p its first
    candidate nears certainty.
    """

    name = "coupled"
    samples = False

    def noise(self, round: Round, levels: slice, nodes: int) -> Tensor:
        return round.ahead[:, levels]

    def children(self, draft: Draft, noise: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if count == 1:  # of a chain, which has nothing to compare
            tokens, values = _best(draft.log_q + noise, 1)
            return tokens, torch.zeros_like(values)
        tokens, values = _best(draft.log_q + noise, max(count, COMPARED))
        return tokens[..., :count], _chances(values, draft.trust)[..., :count]


@dataclass(frozen=True)
class Sampled:
    """Draws from q without replacement (EAGLE-1, arXiv 2401.15077), in draw order.

    The draws are the best log q + g, where g is noise of every parent node's own (Gumbel-top-k
    trick, arXiv 1903.06059). The estimate is that of `topk`.
    """

    name = "sampled"
    samples = True

    def noise(self, round: Round, levels: slice, nodes: int) -> Tensor:
        device = round.inputs.code.device
        positions = round.position(arange(levels.stop, device)[levels])
        return round.noise.draft(round.inputs.stream, positions, arange(nodes, device))

    def children(self, draft: Draft, noise: Tensor, count: int) -> tuple[Tensor, Tensor]:
        tokens = _best(draft.log_q + noise, count)[0]
        return tokens, draft.log_q.gather(-1, tokens)


@fused
def _chances(values: Tensor, trust: Tensor | None) -> Tensor:
    """Return estimated log-probabilities (..., count) of candidates by their noisy values.

    trust: (...), how much sharper they are; None: 1.
    """
    values = values if trust is None else trust[..., None] * values
    return values - values[..., :COMPARED].logsumexp(-1, keepdim=True)


def _best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the tokens (images, k, count) of the greatest values, and these."""
    if count == 1:  # the same in a third of the time
        best, tokens = values.max(-1, keepdim=True)
    else:
        # a cut distribution may have fewer tokens: the rest has -inf and becomes no node
        best, tokens = values.topk(min(count, values.shape[-1]), dim=-1)
    return tokens, best
