"""Losses of EAGLE heads (arXiv 2401.15077, section 4.2), with guidance-aware laws and unrolled depths."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.noise import gumbel
from decoding.sampling import SamplingLaw
from drafters.eagle import EagleHead
from models.base import Context
from models.transformer import Transformer


@dataclass(frozen=True)
class Row:
    """One guidance row of a batch of sequences.

    ids: (images, prompt + tokens - 1) prompt and image tokens without the last. features: the target's, same length.
    prompt: length of the prompt; slot prompt - 1 is the first that decoding uses.
    """

    ids: Tensor
    features: Tensor
    prompt: int


def unroll(head: EagleHead, row: Row, depths: int, noise: Tensor | None = None) -> list[Tensor]:
    """Predicted features of the slots that decoding uses, (images, tokens - 1, hidden), one tensor per depth.

    Slot i reads feature i and token i + 1. At depth 1 the features are the target's, plus `noise` of the same shape. At
    depth d + 1 a slot reads the head's own prediction of depth d and sees the target's features up to its branch point
    and the slots of its own branch: what a node of a draft tree sees (training-time test, arXiv 2503.01840).
    """
    given, prompt = row.features[:, :-1], row.prompt
    n = given.shape[1]
    positions = torch.arange(n, device=given.device).expand(len(given), -1)
    inputs, outputs = [given if noise is None else given + noise], []
    for depth in range(1, depths + 1):
        context = Context(positions.repeat(1, depth), branches(n, depth, given))
        predicted = head(row.ids[:, 1:].repeat(1, depth), torch.cat(inputs, 1), context)[:, -n:]
        outputs.append(predicted[:, prompt - 1 :])
        inputs.append(torch.cat([given[:, :prompt], predicted[:, prompt - 1 : -1]], 1))
    return outputs


def branches(n: int, depths: int, like: Tensor) -> Tensor:
    """Additive mask (depths n, depths n): slot i of depth k + 1 sees slots up to i - k of depth 1, and of each depth
    l + 1 <= k + 1 the slot i - (k - l) of its own branch. Of the dtype of `like`: SDPA reads an fp32 mask beside fp64
    queries wrongly."""
    device = like.device
    i, j = torch.arange(n, device=device)[:, None], torch.arange(n, device=device)[None]
    never = torch.zeros(n, n, dtype=torch.bool, device=device)
    blocks = [
        [j <= i - k, *(j == i - (k - depth) if depth <= k else never for depth in range(1, depths))]
        for k in range(depths)
    ]
    blocks[0][0] = j <= i
    visible = torch.cat([torch.cat(row, 1) for row in blocks])
    visible |= torch.eye(
        len(visible), dtype=torch.bool, device=device
    )  # the first slots of deeper levels: no empty row
    return torch.zeros(visible.shape, dtype=like.dtype, device=device).masked_fill_(~visible, -torch.inf)


def guided(target: Transformer, features: list[Tensor], cfg: float) -> Tensor:
    """Guided logits in fp32 of both rows' features (images, n, hidden)."""
    with torch.autocast(features[0].device.type, enabled=False):  # guidance would enlarge the rounding of bf16
        logits = torch.stack([target.score(row.float()) for row in features], 1).flatten(0, 1)
    return SamplingLaw(cfg=cfg).guide(logits)


def eagle_loss(target: Transformer, head: EagleHead, rows: list[Row], cfg: float, noise: list[Tensor]) -> Tensor:
    """Feature regression plus cross-entropy to the target's guided law over image codes, mean of two depths.

    Args:
        target: frozen; its head turns features into logits.
        head: the drafter.
        rows: the conditional and the unconditional row of the same images.
        cfg: guidance scale of the law.
        noise: what is added to each row's features without the last.
    """
    depths = 2
    wanted = [row.features[:, row.prompt :] for row in rows]  # (images, tokens - 1, hidden)
    law = guided(target, wanted, cfg).softmax(-1)
    predicted = zip(*(unroll(head, row, depths, added) for row, added in zip(rows, noise, strict=True)), strict=True)
    loss = torch.zeros((), device=law.device)
    for features in predicted:
        regression = sum(F.smooth_l1_loss(found, true) for found, true in zip(features, wanted, strict=True))
        log_q = guided(target, list(features), cfg).log_softmax(-1)
        loss = loss + regression - 0.2 * (law * log_q).sum(-1).mean()
    return loss / depths


@torch.no_grad()
def agreement(target: Transformer, head: EagleHead, rows: list[Row], cfg: float) -> dict[str, float]:
    """Depth-1 figures on held-out images: total variation between guided laws, hit rates of k candidates by q alone and
    with shared Gumbel noise."""
    law = guided(target, [row.features[:, row.prompt :] for row in rows], cfg).softmax(-1)
    q = guided(target, [unroll(head, row, 1)[0] for row in rows], cfg).softmax(-1)
    places = torch.arange(law[..., 0].numel(), device=law.device)
    noise = gumbel(0, "target", places, law.shape[-1]).to(law).view_as(law)
    choice = (law.log() + noise).argmax(-1, keepdim=True)
    figures = {"total_variation": (law - q).abs().sum(-1).div(2).mean().item()}
    for name, ranked in (("topk", q.log()), ("coupled", q.log() + noise)):
        best = ranked.topk(10).indices == choice
        figures |= {f"hit_{name}_{k}": best[..., :k].any(-1).float().mean().item() for k in (1, 4, 10)}
    return figures
