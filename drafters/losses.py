"""Losses of EAGLE heads (arXiv 2401.15077, section 4.2), with guidance-aware laws and unrolled depths."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.eagle import EagleHead
from models.transformer import Context, Transformer


@dataclass(frozen=True)
class Row:
    """One guidance row of a batch of sequences.

    ids: (images, prompt + tokens - 1) prompt and image tokens without the last. features: the target's, same length.
    prompt: length of the prompt; slot prompt - 1 is the first that decoding uses.
    """

    ids: Tensor
    features: Tensor
    prompt: int


def unroll(head: EagleHead, row: Row, depths: int, noise: float) -> list[Tensor]:
    """Predicted features of the slots that decoding uses, (images, tokens - 1, hidden), one tensor per depth.

    Slot i reads feature i and token i + 1. At depth 1 the features are the target's, with uniform noise of this half
    width; at depth d + 1 they are the head's own of depth d, as below the root of a draft tree.
    """
    given = row.features[:, :-1]
    inputs = given + (torch.rand_like(given) * 2 - 1) * noise if noise else given
    positions = torch.arange(given.shape[1], device=given.device).expand(len(given), -1)
    outputs = []
    for _ in range(depths):
        predicted = head(row.ids[:, 1:], inputs, Context(positions))
        outputs.append(predicted[:, row.prompt - 1 :])
        inputs = torch.cat([given[:, :1], predicted[:, :-1]], 1)
    return outputs


def guided(conditional: Tensor, unconditional: Tensor, cfg: float) -> Tensor:
    """Guided logits u + cfg (c - u), in fp32."""
    return unconditional.float() + cfg * (conditional.float() - unconditional.float())


def eagle_loss(target: Transformer, head: EagleHead, rows: tuple[Row, Row], cfg: float, noise: float) -> Tensor:
    """Feature regression plus cross-entropy to the target's guided law over image codes, mean of two depths.

    Args:
        target: frozen; its head turns features into logits.
        head: the drafter.
        rows: the conditional and the unconditional row of the same images.
        cfg: guidance scale of the law.
        noise: half width of the uniform noise on the target's features.
    """
    depths = 2
    wanted = [row.features[:, row.prompt :] for row in rows]  # (images, tokens - 1, hidden)
    law = guided(*map(target.score, wanted), cfg).softmax(-1)
    predicted = [unroll(head, row, depths, noise) for row in rows]
    loss = 0.0
    for conditional, unconditional in zip(*predicted, strict=True):
        regression = F.smooth_l1_loss(conditional, wanted[0]) + F.smooth_l1_loss(unconditional, wanted[1])
        log_q = guided(target.score(conditional), target.score(unconditional), cfg).log_softmax(-1)
        loss = loss + regression - 0.2 * (law * log_q).sum(-1).mean()
    return loss / depths


@torch.no_grad()
def agreement(target: Transformer, head: EagleHead, rows: tuple[Row, Row], cfg: float) -> dict[str, float]:
    """Depth-1 figures on held-out images: total variation between guided laws, hit rates of k candidates by q alone and
    with shared Gumbel noise."""
    law = guided(*(target.score(row.features[:, row.prompt :]) for row in rows), cfg).softmax(-1)
    q = guided(*(target.score(unroll(head, row, 1, 0.0)[0]) for row in rows), cfg).softmax(-1)
    noise = -torch.empty_like(law).exponential_().log()
    choice = (law.log() + noise).argmax(-1, keepdim=True)
    figures = {"total_variation": (law - q).abs().sum(-1).div(2).mean().item()}
    for name, ranked in (("topk", q.log()), ("coupled", q.log() + noise)):
        best = ranked.topk(10).indices == choice
        figures |= {f"hit_{name}_{k}": best[..., :k].any(-1).float().mean().item() for k in (1, 4, 10)}
    return figures
