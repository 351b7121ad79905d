"""Losses of EAGLE heads (arXiv 2401.15077, section 4.2), guided and over several depths."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.sampling import SamplingDistribution
from drafters.eagle import EagleHead
from drafters.training.rows import Joined, Rows, behind_padding, mask_of, positions_of
from models.base import Context, ImageGrid
from models.target import TargetModel
from support.constants import constant

PARTS = ("regression", "cross_entropy", "disagreement")  # of the loss


def unroll(
    head: EagleHead, rows: Rows, depths: int, noise: Tensor | None = None, shift: int = 1
) -> list[Tensor]:
    """Return predicted features of the slots that decoding uses, one tensor per depth.

    Slot i reads feature i and token i + 1. At depth 1 the features are the target's, plus `noise`.
    At depth d + 1 a slot reads the head's own prediction of depth d, and sees the target's features
    up to its branch point and the slots of its own branch. That is what a node of a draft tree sees
    (training-time test, arXiv 2503.01840). Keys and values of earlier depths are kept.

    Args:
        rows: of the dtype that the head computes in, with the hidden states that it reads.
        noise: (rows, drafted, hidden), added to the features of the slots that decoding uses.
        shift: 1; 0 pairs feature i with token i, as earlier code did, for comparisons only.

    Returns:
        Per depth d (rows, drafted - d + 1, hidden): what slots from prompt + d - 2 on predict.
    """
    given, first = head.fuse(rows.features[:, :-1]), rows.prompt - 1
    n, drafted = given.shape[1], rows.drafted
    ids = rows.ids[:, shift : shift + n]
    starts = rows.starts if head.spec.hides_padding else torch.zeros_like(rows.starts)
    # without padding all rows see the same, and one mask serves them
    starts = starts if bool(starts.any()) else starts[:1]
    positions = positions_of(rows.origins, n, head.spec.max_positions - 1)
    visible, cache = behind_padding(starts, n), Joined()
    inputs = given if noise is None else torch.cat([given[:, :first], given[:, first:] + noise], 1)
    outputs = [head(ids, inputs, Context(positions, mask_of(visible, given), cache))[:, first:]]
    slots = [torch.arange(n, device=given.device)]
    for depth in range(2, depths + 1):
        begin = n - drafted + depth - 1
        slots.append(torch.arange(begin, n, device=given.device))
        # nothing reads the keys and values of the last depth
        cache.keeps = depth < depths
        seen = torch.cat([_branch(slots, depth, level) for level in range(1, depth + 1)], 1)
        seen = (
            seen & F.pad(slots[0] >= starts[:, None], (0, seen.shape[1] - n), value=True)[:, None]
        )
        context = Context(positions[:, begin:], mask_of(seen, given), cache)
        outputs.append(head(ids[:, begin:], outputs[-1][:, :-1], context))
    return outputs


def _branch(slots: list[Tensor], depth: int, level: int) -> Tensor:
    """Return which slots of a level a depth's slots see: (queries, keys) bool.

    Of level 1 they see all up to the branch point.
    """
    point = slots[depth - 1][:, None] - (depth - level)
    return slots[level - 1] <= point if level == 1 else slots[level - 1] == point


@dataclass(frozen=True)
class DraftLevels:
    """Which predictions of `unroll` a tree reads.

    Level k drafts token c from the root c - k; a row end in between takes a slot of its own, so a
    level may be more than one depth further.
    """

    slots: Tensor  # (tokens - 1,) the slot, from slot prompt - 1 on, that drafts token 1, 2, ...
    # per level k, for tokens k, k + 1, ..., the index into the predictions of all depths, one depth
    # after the other
    indices: tuple[Tensor, ...]
    depths: int  # how many `unroll` must give

    @staticmethod
    def of(grid: ImageGrid, levels: int, device: torch.device) -> "DraftLevels":
        """Return the levels for images of a grid."""
        tokens = torch.arange(grid.tokens, device=device)
        drafted = grid.slots(grid.tokens - 1)
        indices, deepest = [], 0
        for level in range(1, levels + 1):
            # slots from the root to the token, hence its depth
            above = grid.slots(tokens[level:]) - grid.slots(tokens[:-level])
            # predictions of lesser depths, each with one fewer than the one before
            before = (above - 1) * drafted - (above - 1) * (above - 2) // 2
            indices.append(before + grid.slots(tokens[level:]) - above)
            deepest = max(deepest, int(above.max()))
        return DraftLevels(grid.slots(tokens[1:]) - 1, tuple(indices), deepest)

    def target_features(self, rows: Rows) -> Tensor:
        """Return the target's features (rows, tokens - 1, hidden) that score tokens 1, 2, ..."""
        return rows.features[:, rows.prompt + self.slots]

    def read(self, outputs: list[Tensor]) -> list[Tensor]:
        """Return per level k the predicted features (rows, tokens - k, hidden) of tokens k, ..."""
        joined = torch.cat(outputs, 1)
        return [joined.index_select(1, indices) for indices in self.indices]


def guided(target: TargetModel, features: Tensor, cfg: float) -> Tensor:
    """Return guided logits in fp32 of features (images x guidance, n, hidden)."""
    # without autocast: guidance would enlarge the rounding of bf16
    with torch.autocast(features.device.type, enabled=False):
        return SamplingDistribution(cfg=cfg).guide(target.score(features.to(target.dtype)))


def agreement(p: Tensor, q: Tensor) -> Tensor:
    """Return the probability (...) that p and q (..., codes) choose alike under the same noise.

    The noise is Gumbel. The probability is at least (1 - TV) / (1 + TV), where TV is their total
    variation (arXiv 2408.07978). Both choose x with probability 1 / sum_y max(p_y / p_x, q_y /
    q_x). With the codes sorted by falling p / q, that sum is the p of codes up to x over p_x, plus
    the q of codes after x over q_x.
    """
    # NaN where both are 0: wherever such a code is sorted to, it adds nothing
    order = (p.log() - q.log()).detach().argsort(-1, descending=True)
    p, q = p.gather(-1, order), q.gather(-1, order)
    before, after = p.cumsum(-1), (1 - q.cumsum(-1)).clamp_min(0)
    return (p * q / (before * q + after * p).clamp_min(torch.finfo(p.dtype).tiny)).sum(-1)


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """Return 1 - TV (...) of p and q (..., codes), which no `agreement` exceeds.

    It is the probability that both choose alike under the best joint draw. Nothing is sorted.
    """
    return torch.minimum(p, q).sum(-1)


ALIKE = {"noise": agreement, "overlap": overlap}  # by --agreement


@dataclass(frozen=True)
class EagleLoss:
    """The mean over levels of three parts, weighted.

    They are the regression of features, the cross-entropy to the target's guided distribution over
    image codes, and the share of choices that differ under the same noise.
    """

    target: TargetModel  # frozen; its head turns features into logits
    levels: DraftLevels  # what is scored
    cfg: float = 3.0  # guidance scale of the distribution; with 1 every row has its own
    weights: tuple[float, float, float] = (1.0, 0.1, 0.0)  # of the parts; a third of 0 is skipped
    shift: int = 1  # as for `unroll`
    # of the third part, from p and q (..., codes) the share of equal choices (...): one of `ALIKE`
    measure: Callable[[Tensor, Tensor], Tensor] = agreement

    def __call__(self, head: EagleHead, rows: Rows, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the loss, and its parts (levels, 3) detached."""
        targets = self.levels.target_features(rows)
        with torch.no_grad():
            distribution = guided(self.target, targets, self.cfg).softmax(-1)
        outputs = unroll(head, rows, self.levels.depths, noise, self.shift)
        predicted = self.levels.read(outputs)
        parts = []
        for level, features in enumerate(predicted):
            p = distribution[:, level:]
            log_q = guided(self.target, features, self.cfg).log_softmax(-1)
            goal = targets[:, level:, : features.shape[-1]]  # without hidden states
            regression = F.smooth_l1_loss(features.float(), goal.float())
            differ = torch.zeros_like(regression)
            if self.weights[2]:
                differ = 1 - self.measure(p, log_q.exp()).mean()
            parts.append(torch.stack([regression, -(p * log_q).sum(-1).mean(), differ]))
        return self.total(stacked := torch.stack(parts)), stacked.detach()

    def total(self, parts: Tensor) -> Tensor:
        """Return the loss of parts (levels, 3)."""
        weights = constant(self.weights, parts.device)  # copied once, for a copy waits
        return parts.mean(0) @ weights.to(parts.dtype)
