"""The sampling law: the only place that knows guidance, temperature, top-k and top-p."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingDistribution:
    """Logits of the scored ids -> log-probabilities, in fp32 or better.

    Order as in the baselines of the field: guidance, temperature, top-k (ties kept), top-p (the token that crosses p is
    kept). At temperature 0 the law is the plain softmax of the guided logits; tokens are then chosen by argmax.
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
        return self.temperature == 0

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits (images x guidance, n, vocab), an image's rows adjacent -> log p (images, n, vocab)."""
        scores = self.guide(logits)
        if not self.greedy:
            scores = self._top_p(
                self._top_k(scores / self.temperature if self.temperature != 1 else scores)
            )
        return scores.log_softmax(-1)

    def guide(self, logits: Tensor) -> Tensor:
        """Guided logits (images, n, vocab), in fp32 or better."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.guidance == 1:
            return logits
        conditional, unconditional = logits.unflatten(0, (-1, 2)).unbind(1)
        return unconditional + self.cfg * (conditional - unconditional)

    def _top_k(self, scores: Tensor) -> Tensor:
        if not 0 < self.top_k < scores.shape[-1]:
            return scores
        smallest = scores.topk(self.top_k, dim=-1).values[..., -1:]
        return scores.masked_fill(scores < smallest, -torch.inf)

    def _top_p(self, scores: Tensor) -> Tensor:
        if self.top_p >= 1:
            return scores
        ordered, index = scores.sort(dim=-1, descending=True, stable=True)
        mass = ordered.softmax(-1)
        beyond = mass.cumsum(-1) - mass >= self.top_p
        return scores.masked_fill(beyond.scatter(-1, index, beyond), -torch.inf)

    def cut_distance(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """How far tokens (n,) are from changing sides at top-k (in logits / T) and at top-p (in mass): (m,), m <= 2 n.

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


def choose(log_p: Tensor, noise: Tensor) -> Tensor:
    """The tokens that the law emits under this noise (Gumbel-max; ties to the lowest id): (..., vocab) -> (...)."""
    return (log_p + noise).argmax(-1)
