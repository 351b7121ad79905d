"""The sampling distribution: the only place that knows guidance, temperature, top-k and top-p."""

from dataclasses import dataclass

import torch
from torch import Tensor

from support.compiler import fused
from support.kernels import replaceable


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
        cuts = (self.top_k, self.top_p) if self.cuts else (0, 1.0)
        return log_p_of(logits, self.cfg, self.temperature or 1.0, *cuts)

    def guide(self, logits: Tensor) -> Tensor:
        """Return guided logits (images, n, vocab), in fp32 or better."""
        return _guided(logits, self.cfg)


@replaceable
def log_p_of(logits: Tensor, cfg: float, temperature: float, k: int, p: float) -> Tensor:
    """Return log p (images, n, vocab) of logits (images x guidance, n, vocab).

    Top-k 0 and top-p 1 cut nothing.
    """
    scores = _guided(logits, cfg)
    if temperature != 1:
        scores = scores / temperature
    return _top_p(top_k(scores, k), p).log_softmax(-1)


@fused
def _guided(logits: Tensor, cfg: float) -> Tensor:
    # before guidance, which would enlarge the rounding of bf16
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if cfg == 1:
        return logits
    conditional, unconditional = logits.unflatten(0, (-1, 2)).unbind(1)
    return unconditional + cfg * (conditional - unconditional)


def top_k(scores: Tensor, k: int) -> Tensor:
    """Return scores, -inf below the k-th greatest one; ties with it are kept."""
    if not 0 < k < scores.shape[-1]:
        return scores
    smallest = scores.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return scores.masked_fill(scores < smallest, -torch.inf)


def _top_p(scores: Tensor, p: float) -> Tensor:
    """Return scores, -inf after the token whose mass crosses p."""
    if p >= 1:
        return scores
    ordered, index = scores.sort(dim=-1, descending=True, stable=True)
    mass = ordered.softmax(-1)
    beyond = mass.cumsum(-1) - mass >= p
    return scores.masked_fill(beyond.scatter(-1, index, beyond), -torch.inf)


@replaceable
def best(log_p: Tensor, noise: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return the tokens (images, ..., count) of the greatest log p plus noise, and these values.

    A cut distribution may have fewer tokens: the rest has -inf, and becomes no node.

    log_p: (images, ..., vocab). noise: broadcastable to it, with 1 for vocab only if it is zeros.
    """
    values = log_p if noise is None else log_p + noise
    if count == 1:  # the same in a third of the time
        greatest, tokens = values.max(-1, keepdim=True)
    else:
        greatest, tokens = values.topk(min(count, values.shape[-1]), dim=-1)
    return tokens, greatest


def choose(log_p: Tensor, noise: Tensor | None) -> Tensor:
    """Return the tokens (...) that log_p (..., vocab) emits under this Gumbel noise.

    By the Gumbel-max trick they are samples; without noise the argmax. Ties go to the lowest code.
    """
    # torch's maximum is the first of equal values
    return best(log_p, noise, 1)[0][..., 0]
