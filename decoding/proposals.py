"""Proposals: how the children of a node are taken from the drafter's law."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from decoding.calibration import Calibration


class Proposal(Protocol):
    """Chooses candidates for the next token and estimates, per candidate, the probability that the target chooses
    it. stream: the role of the noise that it reads."""

    name: str
    stream: str

    def children(
        self, log_q: Tensor, noise: Tensor, count: int, level: int
    ) -> tuple[Tensor, Tensor]:
        """Drafter's law log q (images, k, vocab), the noise at these positions (same shape, or zeros), candidates per
        node, their level -> tokens (images, k, count) in the order in which they are to be tried, and the logarithms of
        their estimated hit probabilities; -inf where there is no candidate."""


@dataclass(frozen=True)
class TopK:
    """The likeliest tokens under q (EAGLE-2, arXiv 2406.16858); uncalibrated, the estimate is q itself."""

    calibration: Calibration = Calibration()
    name = "topk"
    stream = "target"

    def children(
        self, log_q: Tensor, noise: Tensor, count: int, level: int
    ) -> tuple[Tensor, Tensor]:
        factor = self.calibration.at(level)
        if factor != 1:
            return _best(log_q, count, factor)
        scores, tokens = log_q.topk(min(count, log_q.shape[-1]), dim=-1)
        return tokens, scores


@dataclass(frozen=True)
class Coupled:
    """The best tokens by log q + G with the target's own positional noise G: what the target would choose if q were p.

    The estimate is a softmax of the perturbed values: the probability of being chosen after one more independent Gumbel
    disturbance of every value, which stands for the disagreement between q and p.
    """

    calibration: Calibration = Calibration()
    name = "coupled"
    stream = "target"

    def children(
        self, log_q: Tensor, noise: Tensor, count: int, level: int
    ) -> tuple[Tensor, Tensor]:
        return _best(log_q + noise, count, self.calibration.at(level))


@dataclass(frozen=True)
class Sampled:
    """Drawn from q without replacement, in draw order (EAGLE-1, arXiv 2401.15077), by the best log q + g with noise of
    its own (Gumbel-top-k trick, Kool et al., arXiv 1903.06059). The estimate is that of `topk`."""

    calibration: Calibration = Calibration()
    name = "sampled"
    stream = "draft"

    def children(
        self, log_q: Tensor, noise: Tensor, count: int, level: int
    ) -> tuple[Tensor, Tensor]:
        tokens = (log_q + noise).topk(min(count, log_q.shape[-1]), dim=-1).indices
        factor = self.calibration.at(level)
        scores = log_q if factor == 1 else (factor * log_q).log_softmax(-1)
        return tokens, scores.gather(-1, tokens)


def _best(values: Tensor, count: int, factor: float) -> tuple[Tensor, Tensor]:
    """The best candidates by log softmax of factor times the values, with that as their scores."""
    scores, tokens = (factor * values).log_softmax(-1).topk(min(count, values.shape[-1]), dim=-1)
    return tokens, scores


PROPOSALS: dict[str, type[Proposal]] = {
    proposal.name: proposal for proposal in (TopK, Coupled, Sampled)
}
