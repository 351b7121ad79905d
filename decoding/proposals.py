"""Proposals: how the children of a node are taken from the drafter's distribution q."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from decoding.calibration import Calibration
from decoding.kernels import steps_for


class Proposal(Protocol):
    """Chooses candidates for the next token, and estimates how likely the target chooses each.

    stream: the role of the noise that it reads.
    """

    name: str
    stream: str

    def children(
        self, log_q: Tensor, noise: Tensor, count: int, level: int, trust: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return candidates (images, k, count), best first, and their estimated log-probabilities.

        Args:
            log_q: (images, k, vocab) the drafter's distributions after k nodes.
            noise: (images, k, vocab) at these positions; 1 in place of k where all share one, and
                zeros with 1 in place of vocab at temperature 0.
            count: candidates per node.
            level: tree level of the candidates, from 1, for the calibration.
            trust: (images, k) what the drafter multiplies the calibration with, if it does. Only
                `coupled` heeds it: where q nears p, its first candidate nears certainty, while the
                probabilities that the others estimate by stay as they are.

        An estimate of -inf stands where there is no candidate.
        """


@dataclass(frozen=True)
class TopK:
    """Takes the likeliest tokens under q (EAGLE-2, arXiv 2406.16858); the estimate is q itself."""

    calibration: Calibration = Calibration()
    name = "topk"
    stream = "target"

    def children(
        self, log_q: Tensor, noise: Tensor, count: int, level: int, trust: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        factor = self.calibration.at(level)
        if kernels := steps_for(log_q):
            return kernels.children(log_q, None, count, factor, None, normal=factor == 1)
        if factor != 1:
            return _best(log_q, count, factor)
        scores, tokens = log_q.topk(min(count, log_q.shape[-1]), dim=-1)
        return tokens, scores


@dataclass(frozen=True)
class Coupled:
    """Takes the best tokens by log q + G, where G is the noise that the target will choose with.

    The first candidate is what the target chooses if q equals its p. The estimate is a softmax of
    the noisy values: the probability to be chosen after one more Gumbel disturbance of every value,
    which stands for the difference between q and p.
    """

    calibration: Calibration = Calibration()
    name = "coupled"
    stream = "target"

    def children(
        self, log_q: Tensor, noise: Tensor, count: int, level: int, trust: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        factor = self.calibration.at(level)
        if kernels := steps_for(log_q):
            return kernels.children(log_q, noise, count, factor, trust)
        return _best(log_q + noise, count, factor, trust)


@dataclass(frozen=True)
class Sampled:
    """Draws from q without replacement (EAGLE-1, arXiv 2401.15077), in draw order.

    The draws are the best log q + g, where g is noise of its own (Gumbel-top-k trick, arXiv
    1903.06059). The estimate is that of `topk`.
    """

    calibration: Calibration = Calibration()
    name = "sampled"
    stream = "draft"

    def children(
        self, log_q: Tensor, noise: Tensor, count: int, level: int, trust: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        tokens = (log_q + noise).topk(min(count, log_q.shape[-1]), dim=-1).indices
        factor = self.calibration.at(level)
        scores = log_q if factor == 1 else (factor * log_q).log_softmax(-1)
        return tokens, scores.gather(-1, tokens)


def _best(
    values: Tensor, count: int, factor: float, trust: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the best candidates by log_softmax(factor * trust * values), their estimates."""
    if trust is not None:
        values = values * (trust if factor == 1 else factor * trust)[..., None]
    elif factor != 1:
        values = factor * values
    log_p = values.log_softmax(-1)
    if count == 1:  # the same in a third of the time
        scores, tokens = log_p.max(-1, keepdim=True)
    else:
        scores, tokens = log_p.topk(min(count, values.shape[-1]), dim=-1)
    return tokens, scores


PROPOSALS: dict[str, type[Proposal]] = {
    proposal.name: proposal for proposal in (TopK, Coupled, Sampled)
}
