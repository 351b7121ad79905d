"""The sampling distribution: the only place that knows guidance, temperature, top-k and top-p."""

from dataclasses import dataclass

import torch
from torch import Tensor

from support.compiler import fused


@dataclass(frozen=True)
class SamplingDistribution:
    """Turns logits of image codes into log-probabilities, in fp32 or better.

    The order is that of the field's baselines: guidance, temperature, top-k (ties are kept), top-p
    (the token that crosses p is kept). LANTERN's plain decoding has it too; its drafting methods
    cut by top-p first, so with top-p below 1 its own two distributions differ. At temperature 0 it
    is the softmax of the guided logits without cuts, and tokens are chosen by argmax. Target and
    drafter use the same one.

    cfg: guidance scale; 1 means no guidance. top_k: 0 means no cut.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    cfg: float = 3.0

    @property
    def guidance(self) -> int:
        """Rows per image: 2 with classifier-free guidance, 1 without (cfg = 1)."""
        return 1 if self.cfg == 1 else 2

    @property
    def greedy(self) -> bool:
        """Whether tokens are chosen by argmax, without noise."""
        return self.temperature == 0

    @property
    def cuts(self) -> bool:
        """Whether codes may have probability 0."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1)

    def __call__(self, logits: Tensor) -> Tensor:
        """Return log p (images, n, vocab) of logits (images x guidance, n, vocab).

        The guidance rows of an image are adjacent, the conditional one first.
        """
        scores = self.guide(logits)
        if not self.greedy:
            scores = self._top_p(
                self._top_k(scores / self.temperature if self.temperature != 1 else scores)
            )
        return scores.log_softmax(-1)

    def guide(self, logits: Tensor) -> Tensor:
        """Return guided logits (images, n, vocab), in fp32 or better."""
        return _guided(logits, self.cfg)

    def _top_k(self, scores: Tensor) -> Tensor:
        if not 0 < self.top_k < scores.shape[-1]:
            return scores
        smallest = scores.topk(self.top_k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        return scores.masked_fill(scores < smallest, -torch.inf)

    def _top_p(self, scores: Tensor) -> Tensor:
        if self.top_p >= 1:
            return scores
        ordered, index = scores.sort(dim=-1, descending=True, stable=True)
        mass = ordered.softmax(-1)
        beyond = mass.cumsum(-1) - mass >= self.top_p
        return scores.masked_fill(beyond.scatter(-1, index, beyond), -torch.inf)

    def cut_distance(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Return how close tokens (n,) are to the cuts of top-k and top-p: (m,), m <= 2 n.

        Distances are in logits / T for top-k, in probability for top-p. Tests use them to tell a
        rounding difference from a fault.

        scores: (vocab,) guided logits / T of one position, finite.
        """
        distances = [scores.new_zeros(0)]
        ordered, index = scores.sort(descending=True, stable=True)
        place = index.argsort()[tokens]
        if 0 < self.top_k < len(scores):
            last, first_cut = ordered[self.top_k - 1], ordered[self.top_k]
            distances.append(
                torch.where(
                    scores[tokens] >= last, scores[tokens] - first_cut, last - scores[tokens]
                )
            )
        if self.top_p < 1:
            mass = self._top_k(ordered).softmax(-1)
            distances.append(((mass.cumsum(-1) - mass)[place] - self.top_p).abs())
        return torch.cat(distances)


@fused
def _guided(logits: Tensor, cfg: float) -> Tensor:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if cfg == 1:
        return logits
    conditional, unconditional = logits.unflatten(0, (-1, 2)).unbind(1)
    return unconditional + cfg * (conditional - unconditional)


def choose(log_p: Tensor, noise: Tensor) -> Tensor:
    """Return the tokens (...) that log_p (..., vocab) emits under this Gumbel noise.

    By the Gumbel-max trick they are samples; without noise the argmax. Ties go to the lowest code.
    """
    return (log_p + noise).argmax(-1)
