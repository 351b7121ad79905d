"""Preallocated KV cache of a batch of images; nothing else reads or moves keys and values.

An image owns `guidance` neighbouring rows (conditional, unconditional). Its prompts are padded on
the left, so that they end at the same slot. Committed tokens fill the slots below `lengths[image]`;
the tokens of a draft tree come after them until `move` brings the accepted ones to the front.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.cache_pass import CachePass, ragged_mask, uniform_mask
from decoding.kernels import Rounds, steps_for
from decoding.transfer import on_device
from models.base import Context, TransformerSpec

_LEAST_GROWTH = 64  # slots


@dataclass(frozen=True)
class CacheShape:
    """Capacity of a cache: images in flight, rows per image, token slots per row."""

    images: int
    guidance: int
    slots: int


def attention_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type that a network of this dtype attends in: itself, but fp32 for bf16 on CPUs.

    There torch's bf16 attention of one token takes four times as long: 83 us for 18 at 128 keys,
    199 for 34 at 320 (EPYC with AVX512-bf16, one thread).
    """
    return torch.float32 if (device.type, dtype) == ("cpu", torch.bfloat16) else dtype


@dataclass(frozen=True)
class Fixed:
    """What takes the place of the host's lengths in passes that are recorded and replayed.

    lengths: (images,) committed slots, on the device. visible: slots that attention reads, whatever
    the lengths are; those beyond them are masked.
    """

    lengths: Tensor
    visible: int


class KVCache:
    """Keys and values of all layers, and what a forward pass may see of them.

    `open` prepares a forward pass, which writes its tokens layer by layer; `advance` commits them.
    Of a tree, `move` first brings the accepted tokens to the front.
    """

    def __init__(
        self, spec: TransformerSpec, shape: CacheShape, dtype: torch.dtype, device: torch.device
    ):
        """Allocate; device: of masks and, unless the spec says otherwise, of every layer.

        dtype: of the network. Keys, values and masks are in `attention_dtype`.
        """
        dtype = attention_dtype(dtype, device)
        rows = shape.images * shape.guidance
        size = (rows, spec.kv_heads, shape.slots, spec.head_dim)
        # keys and values of every layer in turn, one tensor for neighbouring layers of a device
        self.memory = tuple(
            torch.zeros(2 * len(list(layers)), *size, dtype=dtype, device=place)
            for place, layers in groupby(spec.layer_devices or (device,) * spec.layers)
        )
        # an additive mask: -inf before a row's first token
        self.pads = torch.zeros(rows, 1, 1, shape.slots, dtype=dtype, device=device)
        self.starts = torch.zeros(rows, dtype=torch.long, device=device)
        self.origins = torch.zeros_like(self.starts)
        # on the host, where the lengths are known after every round
        self.lengths = np.zeros(shape.images, dtype=np.int64)
        self.guidance, self.last_position = shape.guidance, spec.max_positions - 1
        self.fixed: Fixed | None = None

    @property
    def slots(self) -> int:
        """Token slots per row."""
        return self.memory[0].shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and masks."""
        return sum(memory.nbytes for memory in self.memory) + self.pads.nbytes

    def image(self, index: int) -> "KVCache":
        """Return the cache of one image, which shares memory with this one."""
        rows = slice(index * self.guidance, (index + 1) * self.guidance)
        return self._view(rows, self.lengths[index : index + 1])

    def select(self, images: list[int]) -> "KVCache":
        """Return the cache of these images only, ascending; it takes over this one's memory."""
        rows = [image * self.guidance + row for image in images for row in range(self.guidance)]
        for place, row in enumerate(rows):
            if place != row:
                for memory in self.memory:
                    memory[:, place] = memory[:, row]
                for values in (self.pads, self.starts, self.origins):
                    values[place] = values[row]
        return self._view(slice(len(rows)), self.lengths[images])

    def grow(self, slots: int) -> None:
        """Make room for at least so many slots per row; what is cached stays."""
        if slots > self.slots:
            more = max(slots - self.slots, _LEAST_GROWTH)
            self.memory = tuple(F.pad(memory, (0, 0, 0, more)) for memory in self.memory)
            self.pads = F.pad(self.pads, (0, more))

    def _view(self, rows: slice, lengths: np.ndarray) -> "KVCache":
        view = object.__new__(KVCache)
        view.memory = tuple(memory[:, rows] for memory in self.memory)
        view.pads, view.starts = self.pads[rows], self.starts[rows]
        view.origins = self.origins[rows]
        view.lengths, view.guidance, view.last_position = lengths, self.guidance, self.last_position
        view.fixed = None
        return view

    def reset(self, starts: Tensor, origins: Tensor | None = None) -> None:
        """Forget everything and set where rows begin.

        Args:
            starts: (rows,) slot of a row's first token; the slots before it are padding.
            origins: (rows,) slot of rotary position 0; None for that of the first token.
        """
        self.lengths[:] = 0
        self.starts.copy_(starts)
        self.origins.copy_(starts if origins is None else origins)
        before = torch.arange(self.slots, device=starts.device) < self.starts[:, None]
        self.pads.zero_().masked_fill_(before[:, None, None], -torch.inf)

    def begin_as(self, other: "KVCache", length: int) -> None:
        """Commit another image's first `length` slots, and begin where it does; of its size."""
        for new, old in zip(self.memory, other.memory, strict=True):
            new[..., :length, :] = old[..., :length, :]
        for name in ("pads", "starts", "origins"):
            getattr(self, name).copy_(getattr(other, name))
        self.lengths[:] = length

    def open(self, depths: Tensor, block: Tensor) -> Context:
        """Prepare a forward pass over n new tokens after the committed ones; return its context.

        Args:
            depths: (images, n) distance of each new token from the first slot after the committed
                ones, for its rotary position.
            block: (images, n, m) bool, m >= n: what the new tokens see of the m latest tokens,
                themselves last; the m - n others were written since the last commit.
        """
        n, m = block.shape[1:]
        stop = self.used(m) if self.fixed is None else self.fixed.visible
        past = self.pads[..., :stop]
        if kernels := steps_for(past):
            return self._compiled(kernels, (depths, block), past)
        if self._alike():
            committed, targets = stop - m, None
            mask = uniform_mask(past, block, self.guidance)
        else:
            committed = self._committed().repeat_interleave(self.guidance)[:, None]
            slots = committed + torch.arange(m - n, m, device=committed.device)  # (rows, n)
            rows = torch.arange(len(committed), device=committed.device)[:, None]
            targets = rows, slots
            mask = ragged_mask(past, block, committed, self.guidance)
        offset = committed - self.origins[:, None]  # (rows, 1)
        positions = (depths[:, None] + offset.unflatten(0, (-1, self.guidance))).flatten(0, 1)
        memory = tuple(memory.narrow(3, 0, stop) for memory in self.memory)
        part = CachePass(memory, n, targets, self.guidance)
        return Context(positions.clamp_(0, self.last_position), mask, part)

    def _compiled(self, kernels: Rounds, tokens: tuple[Tensor, Tensor], past: Tensor) -> Context:
        """Return what `open` does; tokens: depths and block."""
        n, m = tokens[1].shape[1:]
        alike, stop, first = self._alike(), past.shape[3], self._committed()
        positions, mask = kernels.open(past, first, self.origins, self.last_position, tokens)
        targets = None
        if not alike:
            slots = first.repeat_interleave(self.guidance)[:, None] + torch.arange(m - n, m)
            targets = torch.arange(len(slots))[:, None], slots
        memory = tuple(memory.narrow(3, 0, stop) for memory in self.memory)
        return Context(positions, mask, CachePass(memory, n, targets, self.guidance))

    def used(self, new: int) -> int:
        """Return the slots up to the newest of so many new tokens per row."""
        used = max(self.lengths.tolist()) + new  # numpy takes longer for a few numbers
        assert used <= self.slots, "cache overflow"
        return used

    def _alike(self) -> bool:
        """Return whether all images have one length, by the host's count; False if it is fixed."""
        if self.fixed is not None:
            return False
        return len(self.lengths) == 1 or bool((self.lengths == self.lengths[0]).all())

    def _committed(self) -> Tensor:
        """Return the lengths (images,) on the device."""
        fixed = self.fixed
        return on_device(self.lengths, self.starts.device) if fixed is None else fixed.lengths

    def _layers(self, first: int, stop: int | None) -> Iterator[Tensor]:
        """Yield the memory of layers first to stop - 1, a tensor per device."""
        begin, end = 2 * first, sum(map(len, self.memory)) if stop is None else 2 * stop
        for memory in self.memory:
            if len(part := memory[max(begin, 0) : max(end, 0)]):
                yield part
            begin, end = begin - len(memory), end - len(memory)

    def advance(self, counts: list[int]) -> None:
        """Commit the first counts[i] of the new tokens of image i."""
        for image, count in enumerate(counts):  # numpy would make an array of them first
            self.lengths[image] += count

    def move(self, path: Tensor, first: int = 0, stop: int | None = None) -> None:
        """Bring the tokens at offsets path (images, n) of the last pass to the front, in order.

        It does not commit them: of images that keep fewer, what follows is overwritten.

        first, stop: of layers first to stop - 1 only, if these have their tokens at other offsets.
        """
        if self.fixed is None and (kernels := steps_for(self.pads)):
            lengths = self._committed()
            for memory in self._layers(first, stop):
                kernels.move(memory, path, lengths)
            return
        n, alike = path.shape[1], self._alike()
        front = torch.arange(n, device=path.device)
        committed = int(self.lengths[0]) if alike else self._committed()[:, None]
        if len(path) == 1 and alike:
            for memory in self._layers(first, stop):
                kept = memory.index_select(3, path[0].to(memory.device) + committed)
                memory.narrow(3, committed, n).copy_(kept)
            return
        source = (path + committed).repeat_interleave(self.guidance, 0)  # (rows, n)
        if not alike:
            place = (front + committed).repeat_interleave(self.guidance, 0)
        for memory in self._layers(first, stop):
            rows = torch.arange(len(source), device=memory.device)[:, None]
            # (rows, n, 2 layers, kv_heads, head_dim)
            kept = memory[:, rows, :, source.to(memory.device)]
            if alike:
                memory.narrow(3, committed, n).copy_(kept.permute(2, 0, 3, 1, 4))
            else:
                memory[:, rows, :, place.to(memory.device)] = kept
