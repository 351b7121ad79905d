"""What one forward pass writes to a KV cache, and what it sees of it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CachePass:
    """Keys and values of a forward pass over n new tokens; of every layer in turn, keys first.

    visible: up to the newest token, (rows, kv_heads, slots, head_dim) each. new: those of the new
    tokens, where these have the same slots in all rows; otherwise () and targets: rows (rows, 1)
    and slots (rows, n). guidance: neighbouring rows that belong to one image.
    """

    visible: tuple[Tensor, ...]
    new: tuple[Tensor, ...]
    targets: tuple[Tensor, Tensor] | None
    guidance: int

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values (rows, kv_heads, n, head_dim).

        Returns all keys and values up to the newest, (rows, kv_heads, slots, head_dim) each.
        """
        for place, written in ((2 * layer, keys), (2 * layer + 1, values)):
            if self.targets is None:
                self.new[place].copy_(written)
            else:
                _scatter(self.visible[place], *self.targets, written)
        return self.visible[2 * layer], self.visible[2 * layer + 1]

    def slots(self, rows: int, n: int) -> Tensor:
        """Return the slots (rows, n) where the new keys and values stand."""
        if self.targets is not None:
            return self.targets[1].contiguous()
        stop = self.visible[0].shape[2]
        return torch.arange(stop - n, stop).repeat(rows, 1)

    def part(self, rows: slice) -> "CachePass":
        """Return what a forward pass over these rows alone writes and sees."""
        visible, new = (tuple(each[rows] for each in all_) for all_ in (self.visible, self.new))
        if (targets := self.targets) is not None:
            slots = targets[1][rows]
            targets = targets[0][: len(slots)], slots
        return CachePass(visible, new, targets, self.guidance)


def _scatter(memory: Tensor, rows: Tensor, slots: Tensor, new: Tensor) -> None:
    """Write new (rows, kv_heads, n, head_dim) at rows (rows, 1), slots (rows, n) of a layer."""
    device, new = memory.device, new.to(memory.dtype)
    memory.transpose(1, 2)[rows.to(device), slots.to(device)] = new.transpose(1, 2)


def uniform_mask(past: Tensor, block: Tensor, guidance: int) -> Tensor:
    """Return the additive mask of a pass whose new slots are the same in all rows.

    Args:
        past: (rows, 1, 1, slots) mask of the slots up to the newest, -inf before a row begins.
        block: (images, n, m) bool, what the n new tokens see of the m latest.
        guidance: rows per image.
    """
    (n, m), slots = block.shape[1:], past.shape[-1]
    if n == m == 1:
        return past
    mask = past.repeat(1, 1, n, 1)
    latest = mask.narrow(3, slots - m, m).unflatten(0, (-1, guidance))
    latest.masked_fill_(~block[:, None, None], -torch.inf)
    if slots == m:
        mask.diagonal(dim1=-2, dim2=-1).zero_()  # padding sees itself: no softmax is empty
    return mask


def ragged_mask(past: Tensor, block: Tensor, committed: Tensor, guidance: int) -> Tensor:
    """Return the additive mask of a pass whose rows have committed[row, 0] slots.

    Slots that come after a row's newest are masked. The other arguments are those of
    `uniform_mask`.
    """
    n, m = block.shape[1:]
    # (rows, slots) relative to the first new slot
    offset = torch.arange(past.shape[-1], device=past.device) - committed
    inside = (offset >= 0) & (offset < m)
    index = offset.clamp(0, m - 1)[:, None].expand(-1, n, -1)
    visible = block.repeat_interleave(guidance, 0).gather(2, index) & inside[:, None]
    visible = visible | (offset < 0)[:, None]
    return past.repeat(1, 1, n, 1).masked_fill_(~visible[:, None], -torch.inf)
