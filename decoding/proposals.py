"""Proposals: how the children of a node are taken from the drafter's law."""

from typing import Protocol

from torch import Tensor


class Proposal(Protocol):
    """Chooses candidates for the next token and estimates, per candidate, the probability that the target chooses
    it."""

    name: str

    def children(self, log_q: Tensor, noise: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Drafter's law log q (images, k, vocab), the target's noise at these positions (same shape, or zeros),
        candidates per node -> tokens (images, k, count), best first, and the logarithms of their estimated hit
        probabilities."""


class TopK:
    """The likeliest tokens under q (EAGLE-2, arXiv 2406.16858); the estimate is q itself."""

    name = "topk"

    def children(self, log_q: Tensor, noise: Tensor, count: int) -> tuple[Tensor, Tensor]:
        scores, tokens = log_q.topk(min(count, log_q.shape[-1]), dim=-1)
        return tokens, scores


class Coupled:
    """The best tokens by log q + G with the target's own positional noise G: what the target would choose if q were p.

    The estimate is the softmax of the perturbed values: the probability of being chosen after one more independent
    Gumbel disturbance of every value, which stands for the disagreement between q and p.
    """

    name = "coupled"

    def children(self, log_q: Tensor, noise: Tensor, count: int) -> tuple[Tensor, Tensor]:
        perturbed = log_q + noise
        scores, tokens = perturbed.topk(min(count, log_q.shape[-1]), dim=-1)
        return tokens, scores - perturbed.logsumexp(-1, keepdim=True)


PROPOSALS: dict[str, Proposal] = {proposal.name: proposal for proposal in (TopK(), Coupled())}
