"""What one forward pass writes to a KV cache, and what it sees of it."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain as joined

import torch
from torch import Tensor


@dataclass(frozen=True)
class CachePass:
    """Keys and values of a forward pass over some new tokens.

    memory: up to the newest token, (2 layers, rows, kv_heads, slots, head_dim) for the layers of
    each device, keys and values in turn. new: count of the new tokens. targets: their rows (rows,
    1) and slots (rows, new); None if they are the newest ones in all rows. guidance: neighbouring
    rows that belong to one image.
    """

    memory: tuple[Tensor, ...]
    new: int
    targets: tuple[Tensor, Tensor] | None
    guidance: int

    @cached_property
    def visible(self) -> tuple[Tensor, ...]:
        """Keys and values of every layer in turn, (rows, kv_heads, slots, head_dim) each."""
        # views of all layers at once are cheaper than one by one
        return tuple(joined.from_iterable(memory.unbind(0) for memory in self.memory))

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values (rows, kv_heads, n, head_dim).

        Returns all keys and values up to the newest, (rows, kv_heads, slots, head_dim) each.
        """
        for place, written in ((2 * layer, keys), (2 * layer + 1, values)):
            if self.targets is None:
                self.visible[place][:, :, -self.new :].copy_(written)
            else:
                _scatter(self.visible[place], *self.targets, written)
        return self.visible[2 * layer], self.visible[2 * layer + 1]

    def part(self, rows: slice) -> "CachePass":
        """Return what a forward pass over these rows alone writes and sees."""
        memory = tuple(each[:, rows] for each in self.memory)
        if (targets := self.targets) is not None:
            slots = targets[1][rows]
            targets = targets[0][: len(slots)], slots
        return CachePass(memory, self.new, targets, self.guidance)


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


def chain(images: int, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return depths (images, n) and visibility (images, n, n) of n tokens in a row, for `open`."""
    depths, seen = (_kept_line if device.type == "cpu" else _line)(n, device)
    return depths.expand(images, -1), seen.expand(images, -1, -1)


def _line(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    seen = torch.ones(n, n, dtype=torch.bool, device=device).tril()
    return torch.arange(n, device=device), seen


_kept_line = lru_cache(maxsize=16)(torch.inference_mode(False)(_line))
