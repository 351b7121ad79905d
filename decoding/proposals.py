"""Proposals: how the children of a node are taken from the drafter's distribution q.

A tree ranks candidates by a value, log q or log q plus noise, and needs an estimate of the
probability that the target chooses each of them. The estimate changes the shape of trees, never the
decided tokens.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from decoding.round import Round
from decoding.sampling import best
from support.compiler import fused
from support.constants import arange

# Candidates that estimates of `coupled` drafts compare; a fixed number, since that of a node's
# children depends on the other images of the batch.
COMPARED = 3


@dataclass(frozen=True)
class Predictions:
    """A drafter's distributions after some nodes."""

    log_q: Tensor  # (images, ..., vocab)
    # (images, ...) factor on log q plus noise in the estimates of `coupled`: above 1, candidates
    # are told apart more sharply. None: 1
    sharpness: Tensor | None = None


class Proposal(Protocol):
    """Chooses candidates for the next token, and estimates how likely the target chooses each."""

    name: str
    samples: bool  # whether every round draws candidates, with noise of each parent's own

    def noise(self, round: Round, levels: slice, nodes: int) -> Tensor | None:
        """Return the noise (images, n, vocab) that children are taken with; None for none.

        n is the number of levels, of one node each, or that of nodes on one level; 1 where these
        share their noise. At temperature 0 it is zeros, with 1 for vocab.

        levels: of the children, from 0.
        """

    def children(
        self, predictions: Predictions, noise: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        """Return candidates (images, ..., count), best first, and estimated log-probabilities.

        The estimate of an absent candidate is -inf.

        Args:
            predictions: after the nodes, (images, ..., vocab).
            noise: as returned by `noise`, with one or all of the nodes.
            count: candidates per node.
        """


@dataclass(frozen=True)
class TopK:
    """Takes the likeliest tokens under q (EAGLE-2, arXiv 2406.16858); the estimate is q itself."""

    name = "topk"
    samples = False

    def noise(self, round: Round, levels: slice, nodes: int) -> None:
        return None

    def children(
        self, predictions: Predictions, noise: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        return best(predictions.log_q, None, count)


@dataclass(frozen=True)
class Coupled:
    """Takes the best tokens by log q + G, where G is the noise that the target will choose with.

    The first candidate is what the target chooses if q equals its p. The estimate is a softmax of
    the noisy values of the best `COMPARED`: the probability to win against these after one more
    Gumbel disturbance of every value, which stands for the difference between q and p. Other codes
    have no share: with one, estimates promise the more the deeper a node stands
    (docs/results/tokens.md). It alone uses `Predictions.sharpness`: as q nears p, its first
    candidate nears certainty.
    """

    name = "coupled"
    samples = False

    def noise(self, round: Round, levels: slice, nodes: int) -> Tensor:
        return round.ahead[:, levels]

    def children(
        self, predictions: Predictions, noise: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        if count == 1:  # of a chain, which has nothing to compare
            tokens, values = best(predictions.log_q, noise, 1)
            return tokens, torch.zeros_like(values)
        tokens, values = best(predictions.log_q, noise, max(count, COMPARED))
        return tokens[..., :count], _chances(values, predictions.sharpness)[..., :count]


@dataclass(frozen=True)
class WithoutReplacement:
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

    def children(
        self, predictions: Predictions, noise: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        tokens = best(predictions.log_q, noise, count)[0]
        return tokens, predictions.log_q.gather(-1, tokens)


@fused
def _chances(values: Tensor, sharpness: Tensor | None) -> Tensor:
    """Return estimated log-probabilities (..., count) of candidates by their noisy values.

    sharpness: (...) as in `Predictions`.
    """
    values = values if sharpness is None else sharpness[..., None] * values
    return values - values[..., :COMPARED].logsumexp(-1, keepdim=True)
