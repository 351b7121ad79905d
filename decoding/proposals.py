"""Proposals: how the children of a node are taken from the drafter's distribution q.

A tree ranks candidates by a value, log q or log q plus noise, and needs the probability that the
target chooses each of them. The estimate is softmax(a * value), over all codes or over the
candidates, where the calibration holds a factor a per tree level (temperature scaling, arXiv
1706.04599). Factors are fitted on images that the drafter was not trained on: below 1 where the
values promise too much, above 1 where they promise too little. They change the shape of trees,
never the decided tokens.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from decoding.device import arange, constant
from decoding.drafter import Draft
from decoding.round import Round
from support.compiler import fused


@dataclass(frozen=True)
class Calibration:
    """The factor a of every tree level; deeper levels take the last one."""

    factors: tuple[float, ...] = (1.0,)

    def at(self, level: int) -> float:
        """Return the factor of a level, counted from 1."""
        return self.factors[min(level, len(self.factors)) - 1]

    def of_levels(self, count: int, device: torch.device) -> Tensor:
        """Return the factors (count,) of the first levels."""
        return constant(tuple(map(self.at, range(1, count + 1))), device)


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

    def children(
        self, draft: Draft, noise: Tensor | None, count: int, level: int
    ) -> tuple[Tensor, Tensor]:
        """Return candidates (images, k, count), best first, and their estimated log-probabilities.

        An estimate of -inf stands where there is no candidate.

        Args:
            draft: of k nodes.
            noise: as returned by `noise`.
            count: candidates per node.
            level: tree level of the candidates, from 1, for the calibration.
        """


@dataclass(frozen=True)
class TopK:
    """Takes the likeliest tokens under q (EAGLE-2, arXiv 2406.16858); the estimate is q itself."""

    calibration: Calibration = Calibration()
    name = "topk"
    samples = False

    def noise(self, round: Round, levels: slice, nodes: int) -> None:
        return None

    def children(self, draft: Draft, noise: None, count: int, level: int) -> tuple[Tensor, Tensor]:
        factor = self.calibration.at(level)
        return _best(_estimates(draft.log_q, factor), count)


@dataclass(frozen=True)
class Coupled:
    """Takes the best tokens by log q + G, where G is the noise that the target will choose with.

    The first candidate is what the target chooses if q equals its p. The estimate is a softmax of
    the candidates' noisy values: the probability to be the best of them after one more Gumbel
    disturbance of every value, which stands for the difference between q and p. Other codes have no
    share. There are so many that a softmax of all gives them too much, and the more the broader q
    is; paths then seem less likely than they are (docs/results/tokens.md). It alone heeds the
    drafter's trust: where q nears p its first candidate nears certainty, while what the others
    estimate by stays as it is.
    """

    calibration: Calibration = Calibration()
    name = "coupled"
    samples = False

    def noise(self, round: Round, levels: slice, nodes: int) -> Tensor:
        return round.ahead[:, levels]

    def children(
        self, draft: Draft, noise: Tensor, count: int, level: int
    ) -> tuple[Tensor, Tensor]:
        tokens, values = _best(draft.log_q + noise, count)
        return tokens, _chances(values, draft.trust, self.calibration.at(level))


@dataclass(frozen=True)
class Sampled:
    """Draws from q without replacement (EAGLE-1, arXiv 2401.15077), in draw order.

    The draws are the best log q + g, where g is noise of every parent node's own (Gumbel-top-k
    trick, arXiv 1903.06059). The estimate is that of `topk`.
    """

    calibration: Calibration = Calibration()
    name = "sampled"
    samples = True

    def noise(self, round: Round, levels: slice, nodes: int) -> Tensor:
        device = round.inputs.code.device
        positions = round.position(arange(levels.stop, device)[levels])
        return round.noise.draft(round.inputs.stream, positions, arange(nodes, device))

    def children(
        self, draft: Draft, noise: Tensor, count: int, level: int
    ) -> tuple[Tensor, Tensor]:
        # from q as it is, since rules divide by q; the calibration only shapes trees
        tokens = _best(draft.log_q + noise, count)[0]
        estimates = _estimates(draft.log_q, self.calibration.at(level))
        return tokens, estimates.gather(-1, tokens)


@fused
def _chances(values: Tensor, trust: Tensor | None, factor: float) -> Tensor:
    """Return log-probabilities (images, k, count) of candidates, by their noisy values.

    trust: (images, k), one more factor; None: 1.
    """
    if trust is not None:
        values = values * (trust if factor == 1 else factor * trust)[..., None]
    elif factor != 1:
        values = factor * values
    return values.log_softmax(-1)


def _estimates(log_q: Tensor, factor: float) -> Tensor:
    """Return log q (images, k, vocab), sharpened or flattened by a factor of the calibration."""
    return log_q if factor == 1 else (factor * log_q).log_softmax(-1)


def _best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the tokens (images, k, count) of the greatest values, and these."""
    if count == 1:  # the same in a third of the time
        best, tokens = values.max(-1, keepdim=True)
    else:
        # a cut distribution may have fewer tokens: the rest has -inf and becomes no node
        best, tokens = values.topk(min(count, values.shape[-1]), dim=-1)
    return tokens, best


PROPOSALS: dict[str, type[Proposal]] = {
    proposal.name: proposal for proposal in (TopK, Coupled, Sampled)
}
