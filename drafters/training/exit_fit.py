"""Where an early exit's head begins: its linear layer by least squares, its MLP silent."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from drafters.exit import ExitHead
from drafters.training.exits import enter
from drafters.training.features import Rower
from drafters.training.rows import Rows
from models.base import TargetModel

FITTED = 96  # images that a fit reads; those of the shipped model have 510 slots each
_TOGETHER = 4
_RIDGE = 1e-6  # of the inputs' mean square, for inputs that are always alike


def shares_of(rows: Rower, images: Sequence[int]) -> Iterator[Rows]:
    """Yield the rows of the first images that a fit reads, a few images at a time."""
    read = images[:FITTED]
    return (rows(read[at : at + _TOGETHER], None) for at in range(0, len(read), _TOGETHER))


@torch.no_grad()
def fit_exits(heads: Sequence[ExitHead], target: TargetModel, shares: Iterable[Rows]) -> None:
    """Let heads predict the target's features as well as they can without their MLPs.

    Slots are read as at depth 1 of `unroll_exit`. The norms stay as they are. The last matrix of an
    MLP becomes 0, from where training moves it.

    Args:
        heads: the `spec.layers` of each says after which layer it reads.
        target: frozen.
        shares: rows of images, a few at a time.

    Raises:
        ValueError: the target's prompts are not tokens.
    """
    width = target.spec.hidden
    like = {"dtype": torch.float64, "device": target.device}
    sums = [torch.zeros(2 * width + 1, 3 * width + 1, **like) for _ in heads]
    for rows in shares:
        for head, total in zip(heads, sums, strict=True):
            inputs, wanted = _pairs(head, target, rows)
            total += inputs.T @ torch.cat([inputs, wanted], 1)
    for head, total in zip(heads, sums, strict=True):
        squares, products = total.split([2 * width + 1, width], 1)
        squares.diagonal().add_(_RIDGE * squares.diagonal().mean())
        solved = torch.linalg.solve(squares, products)
        head.fc.weight.copy_(solved[:-1].T)
        head.fc.bias.copy_(solved[-1])
        head.mlp.down.weight.zero_()


def _pairs(head: ExitHead, target: TargetModel, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return what the linear layer reads, (n, 2 hidden + 1) with a 1 for the bias, and features.

    These are (n, hidden), the target's at the same slots.
    """
    rows = rows.to(target.device, head.fc.weight.dtype)
    hidden = head.norm(enter(target, head.spec.layers, rows)[:, rows.prompt :].to(rows.features))
    one = torch.ones_like(hidden[..., :1])
    inputs = torch.cat([hidden, rows.features[:, rows.prompt - 1 : -1], one], -1)
    wanted = rows.features[:, rows.prompt :]
    return inputs.flatten(0, 1).double(), wanted.flatten(0, 1).double()
