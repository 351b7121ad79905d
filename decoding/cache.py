"""Preallocated key-value cache of a batch of images; nothing else reads or moves keys and values.

An image owns `guidance` neighbouring rows (conditional, unconditional) that end at the same slot: the shorter prompt
starts later. Committed tokens fill the slots below `lengths[image]`; the tokens of a draft tree stand behind them until
`keep` moves the accepted ones to the front.
"""

from dataclasses import dataclass
from itertools import chain as joined
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.transfer import on_device
from models.base import Context, TransformerSpec

_LEAST_GROWTH = 64  # slots


@dataclass(frozen=True)
class CacheShape:
    """Capacity of a cache: images in flight, rows per image, token slots per row."""

    images: int
    guidance: int
    slots: int


class KVCache:
    def __init__(
        self, spec: TransformerSpec, shape: CacheShape, dtype: torch.dtype, device: torch.device
    ):
        """device: of masks and, unless the spec says otherwise, of every layer's keys and values."""
        rows = shape.images * shape.guidance
        size = (rows, spec.kv_heads, shape.slots, spec.head_dim)
        # keys and values of every layer in turn, one tensor for neighbouring layers on the same device
        self.memory = tuple(
            torch.zeros(2 * len(list(layers)), *size, dtype=dtype, device=place)
            for place, layers in groupby(spec.layer_devices or (device,) * spec.layers)
        )
        self.pads = torch.zeros(
            rows, 1, 1, shape.slots, dtype=dtype, device=device
        )  # -inf before a row's first token
        self.starts = torch.zeros(rows, dtype=torch.long, device=device)
        self.origins = torch.zeros_like(self.starts)
        self.lengths = np.zeros(
            shape.images, dtype=np.int64
        )  # on the host: known there after every round
        self.guidance, self.last_position = shape.guidance, spec.max_positions - 1

    @property
    def slots(self) -> int:
        return self.memory[0].shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and masks."""
        return sum(memory.nbytes for memory in self.memory) + self.pads.nbytes

    def image(self, index: int) -> "KVCache":
        """The cache of one image; shares memory with this one."""
        rows = slice(index * self.guidance, (index + 1) * self.guidance)
        return self._view(rows, self.lengths[index : index + 1])

    def select(self, images: list[int]) -> "KVCache":
        """The cache of these images only, ascending; takes over this one's memory, where it moves them to the front."""
        rows = [image * self.guidance + row for image in images for row in range(self.guidance)]
        for place, row in enumerate(rows):
            if place != row:
                for memory in self.memory:
                    memory[:, place] = memory[:, row]
                for values in (self.pads, self.starts, self.origins):
                    values[place] = values[row]
        return self._view(slice(len(rows)), self.lengths[images])

    def grow(self, slots: int) -> None:
        """Make room for so many slots per row; what is cached stays."""
        if slots > self.slots:
            more = max(slots - self.slots, _LEAST_GROWTH)
            self.memory = tuple(F.pad(memory, (0, 0, 0, more)) for memory in self.memory)
            self.pads = F.pad(self.pads, (0, more))

    def _view(self, rows: slice, lengths: np.ndarray) -> "KVCache":
        view = object.__new__(KVCache)
        view.memory = tuple(memory[:, rows] for memory in self.memory)
        view.pads, view.starts, view.origins = (
            self.pads[rows],
            self.starts[rows],
            self.origins[rows],
        )
        view.lengths, view.guidance, view.last_position = lengths, self.guidance, self.last_position
        return view

    def reset(self, starts: Tensor, origins: Tensor | None = None) -> None:
        """Forget everything; row r will hold its first token at slot starts[r] (rows,), and rotary position 0 will be
        that slot or, if given, slot origins[r] (rows,)."""
        self.lengths[:] = 0
        self.starts.copy_(starts)
        self.origins.copy_(starts if origins is None else origins)
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
        longest = int(self.lengths.max())
        assert longest + m <= self.slots, "cache overflow"
        self._stop = longest + m
        self._visible = self._slots(0, self._stop)
        if longest == self.lengths.min():
            self._target = None
            self._new = self._slots(self._stop - n, n)
            mask, committed = self._uniform_mask(block), longest
        else:
            lengths = on_device(self.lengths, self.starts.device)
            committed = lengths.repeat_interleave(self.guidance)[:, None]
            self._target = committed + torch.arange(m - n, m, device=committed.device)  # (rows, n)
            self._rows = torch.arange(len(committed), device=committed.device)[:, None]
            mask = self._ragged_mask(block, committed)
        offset = committed - self.origins[:, None]  # (rows, 1)
        positions = (depths[:, None] + offset.unflatten(0, (-1, self.guidance))).flatten(0, 1)
        return Context(positions.clamp_(0, self.last_position), mask, self)

    def _slots(self, start: int, count: int) -> tuple[Tensor, ...]:
        """Keys and values of every layer in turn, of some slots; all layers at once is cheaper than each."""
        return tuple(joined.from_iterable(m.narrow(3, start, count).unbind(0) for m in self.memory))

    def _uniform_mask(self, block: Tensor) -> Tensor:
        n, m = block.shape[1:]
        past = self.pads[..., : self._stop]
        if n == m == 1:
            return past
        mask = past.repeat(1, 1, n, 1)
        latest = mask.narrow(3, self._stop - m, m).unflatten(0, (-1, self.guidance))
        latest.masked_fill_(~block[:, None, None], -torch.inf)
        return self._self_visible(mask) if self._stop == m else mask

    def _self_visible(self, mask: Tensor) -> Tensor:
        """Let padded tokens of a prompt see themselves, so that no softmax is empty."""
        mask.diagonal(dim1=-2, dim2=-1).zero_()
        return mask

    def _ragged_mask(self, block: Tensor, rows: Tensor) -> Tensor:
        n, m = block.shape[1:]
        offset = (
            torch.arange(self._stop, device=rows.device) - rows
        )  # (rows, slots) relative to the first new slot
        inside = (offset >= 0) & (offset < m)
        index = offset.clamp(0, m - 1)[:, None].expand(-1, n, -1)
        visible = (
            block.repeat_interleave(self.guidance, 0).gather(2, index) & inside[:, None]
            | (offset < 0)[:, None]
        )
        mask = self.pads[..., : self._stop].repeat(1, 1, n, 1)
        return mask.masked_fill_(~visible[:, None], -torch.inf)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store what `open` announced, (rows, kv_heads, n, head_dim); returns all slots up to the newest."""
        for place, new in ((2 * layer, keys), (2 * layer + 1, values)):
            if self._target is None:
                self._new[place].copy_(new)
            else:
                _scatter(self._visible[place], self._rows, self._target, new)
        return self._visible[2 * layer], self._visible[2 * layer + 1]

    def part(self, rows: slice) -> "CachePart":
        """What a forward pass over these rows alone, of those that `open` announced, writes and reads."""
        return CachePart(self, rows)

    def advance(self, counts: list[int]) -> None:
        """Commit the first counts[i] of the new tokens of image i."""
        self.lengths += counts

    def keep(self, path: Tensor, counts: list[int]) -> None:
        """Commit the tokens of one path: the j-th committed token of image i is the new token path[i, j], j <
        counts[i].

        Args:
            path: (images, longest) offsets of tokens written by the last pass, the root's first.
            counts: tokens to commit per image.
        """
        for image, (length, count) in enumerate(zip(self.lengths.tolist(), counts, strict=True)):
            if count > 1:  # the root, at offset 0, already stands where it belongs
                rows, slots = (
                    slice(image * self.guidance, (image + 1) * self.guidance),
                    path[image, :count] + length,
                )
                for memory in (memory[:, rows] for memory in self.memory):
                    memory[..., length : length + count, :] = memory.index_select(
                        3, slots.to(memory.device)
                    )
        self.advance(counts)


class CachePart:
    """Some rows of a cache that has been opened for a forward pass."""

    def __init__(self, cache: KVCache, rows: slice):
        self.cache, self.rows = cache, rows

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As KVCache.write, for these rows."""
        cache, rows = self.cache, self.rows
        for place, new in ((2 * layer, keys), (2 * layer + 1, values)):
            if cache._target is None:
                cache._new[place][rows].copy_(new)
            else:
                _scatter(cache._visible[place], cache._rows[rows], cache._target[rows], new)
        return cache._visible[2 * layer][rows], cache._visible[2 * layer + 1][rows]


def _scatter(memory: Tensor, rows: Tensor, slots: Tensor, new: Tensor) -> None:
    """Write new (rows, kv_heads, n, head_dim) into slots (rows, n) of these rows (rows, 1) of a layer's memory."""
    device = memory.device
    memory.transpose(1, 2)[rows.to(device), slots.to(device)] = new.transpose(1, 2)


def chain(images: int, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Depths and visibility of n tokens in a row: (images, n), (images, n, n)."""
    depths = torch.arange(n, device=device).expand(images, -1)
    return depths, torch.ones(n, n, dtype=torch.bool, device=device).tril().expand(images, -1, -1)
