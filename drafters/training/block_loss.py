"""The loss of a block head, in rounds that it drew."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.block import BlockHead
from drafters.training.losses import agreement
from drafters.training.rounds import Drawn, Reading
from drafters.training.windows import pick, scored, windows_of
from models.base import TargetModel


@dataclass(frozen=True)
class BlockLoss:
    """The mean over steps of regression, cross-entropy and disagreement, as of `EagleLoss`.

    They are those of the features that the head predicts, and of the distributions after the
    mixture. What the mixture is trusted with is fitted besides: to the target's choices, as the
    estimates of `coupled` drafts.
    """

    target: TargetModel
    cfg: float
    weights: tuple[float, float, float]
    greedy: bool

    def __call__(
        self, head: BlockHead, images: list[Drawn], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the loss, and its parts (steps, 3) detached; generator: picks the rounds."""
        losses = (self._image(head, drawn, pick(drawn, generator)) for drawn in images)
        parts, fits = zip(*losses, strict=True)
        mean = torch.stack(parts).mean(0)
        return self.total(mean) + torch.stack(fits).mean(), mean.detach()

    def total(self, parts: Tensor) -> Tensor:
        """Return the loss of parts (steps, 3)."""
        return parts.mean(0) @ parts.new_tensor(self.weights)

    def _image(
        self, head: BlockHead, drawn: Drawn, readings: list[Reading]
    ) -> tuple[Tensor, Tensor]:
        rounds = windows_of(self.target, drawn, readings, self.greedy)
        scores = scored(head, self.target, rounds, self.cfg)
        # a step's mean is over the rounds that have it: an image's last ones have fewer steps
        share = rounds.known / rounds.known.sum(0).clamp_min(1)  # (m, steps)
        regression = F.smooth_l1_loss(scores.predicted, scores.wanted, reduction="none")
        p = scores.log_p.exp()
        entropy = -(p * scores.log_q).sum(-1)
        differ = (
            1 - agreement(p, scores.log_q.exp()) if self.weights[2] else torch.zeros_like(entropy)
        )
        parts = torch.stack([regression.mean((1, 3)), entropy, differ], 2)  # (m, steps, 3)
        trusted = head.confidence(rounds.similarity)[..., None]
        # detached: the fit changes what the mixture is trusted with, not what is predicted
        values = (trusted * (scores.log_q.detach() + rounds.noise)).log_softmax(-1)
        chosen = (scores.log_p + rounds.noise).argmax(-1, keepdim=True)
        fit = -(values.gather(-1, chosen)[..., 0] * share).sum(0).mean()
        return (parts * share[..., None]).sum(0), fit
