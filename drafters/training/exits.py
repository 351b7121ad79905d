"""An early exit in training: hidden states of given images, and what its head makes of them."""

import torch
from torch import Tensor

from drafters.exit import ExitHead
from drafters.training.rows import Rows, behind_padding, mask_of, positions_of
from models.base import Context, TargetModel


def unroll_exit(
    target: TargetModel, head: ExitHead, rows: Rows, depths: int, noise: Tensor | None = None
) -> list[Tensor]:
    """Return predicted features, one tensor per depth, as `drafters.training.losses.unroll`.

    Slot i reads the hidden state of token i. At depth 1 the feature before it is the target's, plus
    `noise`; at depth d + 1 it is the head's own prediction of depth d.
    """
    hidden = enter(target, head.spec.layers, rows)[:, rows.prompt :].to(rows.features.dtype)
    before = rows.features[:, rows.prompt - 1 : -1]
    outputs = [head(hidden, before if noise is None else before + noise)]
    for depth in range(1, depths):
        outputs.append(head(hidden[:, depth:], outputs[-1][:, :-1]))
    return outputs


@torch.no_grad()
def enter(target: TargetModel, layers: int, rows: Rows) -> Tensor:
    """Return the hidden states (rows, n, hidden) after the target's first layers.

    Raises:
        ValueError: the target's prompts are not tokens.
    """
    if target.spec.image_rope is not None:
        raise ValueError(
            f"--drafter exit: found {target.name}, whose prompts are features of a text encoder; "
            "allowed: models with prompts of tokens, or --drafter eagle"
        )
    n = rows.ids.shape[1]
    positions = positions_of(rows.origins, n, target.spec.max_positions - 1)
    mask = mask_of(behind_padding(rows.starts, n), target.embedding())
    return target.lower(rows.ids, Context(positions, mask), layers)
