"""Preallocated key-value cache of a batch of images; nothing else reads or moves keys and values.

An image owns `guidance` neighbouring rows (conditional, unconditional) that end at the same slot: the shorter prompt
starts later. Committed tokens fill the slots below `lengths[image]`; the tokens of a draft tree stand behind them until
`keep` moves the accepted ones to the front.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.transformer import Context, TransformerSpec


@dataclass(frozen=True)
class CacheShape:
    """Capacity of a cache: images in flight, rows per image, token slots per row."""

    images: int
    guidance: int
    slots: int


class KVCache:
    def __init__(self, spec: TransformerSpec, shape: CacheShape, dtype: torch.dtype, device: torch.device):
        rows = shape.images * shape.guidance
        size = (2, spec.layers, rows, spec.kv_heads, shape.slots, spec.head_dim)
        self.memory = torch.zeros(size, dtype=dtype, device=device)  # keys and values
        self.pads = torch.zeros(rows, 1, 1, shape.slots, dtype=dtype, device=device)  # -inf before a row's first token
        self.starts = torch.zeros(rows, dtype=torch.long, device=device)
        self.lengths = torch.zeros(shape.images, dtype=torch.long)  # on the host: known there after every round
        self.guidance, self.last_position = shape.guidance, spec.max_positions - 1

    @property
    def slots(self) -> int:
        return self.memory.shape[4]

    def image(self, index: int) -> "KVCache":
        """The cache of one image; shares memory with this one."""
        rows = slice(index * self.guidance, (index + 1) * self.guidance)
        return self._view(self.memory[:, :, rows], rows, self.lengths[index : index + 1])

    def select(self, images: list[int]) -> "KVCache":
        """A copy that holds these images only."""
        rows = torch.tensor(
            [i * self.guidance + g for i in images for g in range(self.guidance)], device=self.starts.device
        )
        return self._view(self.memory[:, :, rows], rows, self.lengths[images])

    def _view(self, memory: Tensor, rows: slice | Tensor, lengths: Tensor) -> "KVCache":
        view = object.__new__(KVCache)
        view.memory, view.pads, view.starts = memory, self.pads[rows], self.starts[rows]
        view.lengths, view.guidance, view.last_position = lengths, self.guidance, self.last_position
        return view

    def reset(self, starts: Tensor) -> None:
        """Forget everything; row r will hold its first token at slot starts[r] (rows,)."""
        self.lengths.zero_()
        self.starts.copy_(starts)
        before = torch.arange(self.slots, device=starts.device) < self.starts[:, None]
        self.pads.zero_().masked_fill_(before[:, None, None], -torch.inf)

    def open(self, depths: Tensor, block: Tensor) -> Context:
        """Prepare a forward pass over n new tokens behind the committed ones.

        Args:
            depths: (images, n) distance of each new token from the first slot behind the committed ones.
            block: (images, n, m) bool, m >= n: what the new tokens see of the m latest tokens, themselves last; the
                m - n others were written by earlier passes since the last commit.
        """
        n, m = block.shape[1:]
        assert int(self.lengths.max()) + m <= self.slots, "cache overflow"
        uniform = bool((self.lengths == self.lengths[0]).all())
        self._stop = int(self.lengths.max()) + m
        if uniform:
            target = slice(self._stop - n, self._stop)
            mask = self._uniform_mask(block)
            lengths = int(self.lengths[0])
            positions = depths.repeat_interleave(self.guidance, 0) + lengths - self.starts[:, None]
        else:
            rows = self.lengths.repeat_interleave(self.guidance).to(self.starts.device)[:, None]  # (rows, 1)
            target = rows + torch.arange(m - n, m, device=rows.device)
            mask = self._ragged_mask(block, rows)
            positions = depths.repeat_interleave(self.guidance, 0) + rows - self.starts[:, None]
        self._aim(target)
        return Context(positions.clamp_(0, self.last_position), mask, self)

    def _aim(self, target: slice | Tensor) -> None:
        """Take all layers' views at once: their cost would recur in every layer."""
        self._target = target
        self._visible = [self.memory[side, ..., : self._stop, :].unbind(0) for side in (0, 1)]
        self._rows = torch.arange(len(self.starts), device=self.starts.device)[:, None]
        if isinstance(target, slice):
            self._new = [self.memory[side, ..., target, :].unbind(0) for side in (0, 1)]

    def _uniform_mask(self, block: Tensor) -> Tensor:
        n, m = block.shape[1:]
        past = self.pads[..., : self._stop]
        if n == m == 1:
            return past
        mask = past.repeat(1, 1, n, 1)
        hidden = ~block.repeat_interleave(self.guidance, 0)[:, None]
        mask[..., self._stop - m :].masked_fill_(hidden, -torch.inf)
        return self._self_visible(mask) if self._stop == m else mask

    def _self_visible(self, mask: Tensor) -> Tensor:
        """Let padded tokens of a prompt see themselves, so that no softmax is empty."""
        mask.diagonal(dim1=-2, dim2=-1).zero_()
        return mask

    def _ragged_mask(self, block: Tensor, rows: Tensor) -> Tensor:
        n, m = block.shape[1:]
        offset = torch.arange(self._stop, device=rows.device) - rows  # (rows, slots) relative to the first new slot
        inside = (offset >= 0) & (offset < m)
        index = offset.clamp(0, m - 1)[:, None].expand(-1, n, -1)
        visible = block.repeat_interleave(self.guidance, 0).gather(2, index) & inside[:, None] | (offset < 0)[:, None]
        mask = self.pads[..., : self._stop].repeat(1, 1, n, 1)
        return mask.masked_fill_(~visible[:, None], -torch.inf)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store what `open` announced, (rows, kv_heads, n, head_dim); returns all slots up to the newest."""
        for side, new in enumerate((keys, values)):
            if isinstance(self._target, slice):
                self._new[side][layer].copy_(new)
            else:
                self.memory[side, layer].transpose(1, 2)[self._rows, self._target] = new.transpose(1, 2)
        return self._visible[0][layer], self._visible[1][layer]

    def advance(self, counts: list[int]) -> None:
        """Commit the first counts[i] of the new tokens of image i."""
        self.lengths += torch.tensor(counts)

    def keep(self, path: Tensor, counts: list[int]) -> None:
        """Commit the tokens of one path: the j-th committed token of image i is the new token path[i, j], j <
        counts[i].

        Args:
            path: (images, longest) ascending offsets of tokens written by the last pass.
            counts: tokens to commit per image.
        """
        for image, (length, count) in enumerate(zip(self.lengths.tolist(), counts, strict=True)):
            if count > 1:  # the root, at offset 0, already stands where it belongs
                memory = self.memory[:, :, image * self.guidance : (image + 1) * self.guidance]
                memory[..., length : length + count, :] = memory.index_select(4, path[image, :count] + length)
        self.advance(counts)


def chain(images: int, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Depths and visibility of n tokens in a row: (images, n), (images, n, n)."""
    depths = torch.arange(n, device=device).expand(images, -1)
    return depths, torch.ones(n, n, dtype=torch.bool, device=device).tril().expand(images, -1, -1)
