"""Preallocated KV cache of a batch of images; nothing else reads or moves keys and values.

An image owns `guidance` neighbouring rows (conditional, unconditional). Its prompts are padded on
the left, so that they end at the same slot. Committed tokens fill the slots below the image's
length; the tokens of a draft tree are written after them until `move` brings the accepted ones to
the front. The cache holds no lengths: a round passes them in, so that it can be captured once and
replayed for every length.
"""

from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from models.base import CachePass, Context, ImageGrid, TransformerSpec
from support.compiler import fused
from support.constants import arange

# Growing copies the cache and makes the engine forget all captured rounds, so it grows seldom.
_LEAST_GROWTH = 64  # slots


@dataclass(frozen=True)
class CacheShape:
    """Capacity of a cache."""

    images: int
    guidance: int  # rows per image
    slots: int  # tokens per row


def image_slots(prompt: int, grid: ImageGrid, nodes: int) -> int:
    """Return how many cache slots an image needs: prompt, image tokens, last draft tree."""
    return prompt + grid.slots(grid.tokens) + grid.block(nodes)


def attention_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type that a network of this dtype attends in: itself, but fp32 for bf16 on CPUs.

    There torch's bf16 attention of one token takes four times as long: 83 us for 18 at 128 keys,
    199 for 34 at 320 (EPYC with AVX512-bf16, one thread).
    """
    return torch.float32 if (device.type, dtype) == ("cpu", torch.bfloat16) else dtype


class KVCache:
    """Keys and values of all layers; `CacheView` and `prefill` prepare passes that write them."""

    def __init__(
        self, spec: TransformerSpec, shape: CacheShape, dtype: torch.dtype, device: torch.device
    ):
        """Allocate; device: of masks and, unless the spec says otherwise, of every layer.

        dtype: of the network. Keys, values and masks are in `attention_dtype`.
        """
        self.dtype = attention_dtype(dtype, device)
        rows = shape.images * shape.guidance
        size = (rows, spec.kv_heads, shape.slots, spec.head_dim)
        # zeros: attention multiplies masked values by 0, and NaN in uninitialised memory would stay
        # one tensor for neighbouring layers of a device
        self.memory = tuple(
            torch.zeros(2 * len(list(layers)), *size, dtype=self.dtype, device=layer_device)
            for layer_device, layers in groupby(spec.layer_devices or (device,) * spec.layers)
        )
        # (rows,) slot of rotary position 0
        self.origins = torch.zeros(rows, dtype=torch.long, device=device)
        # (rows, slots) added to scores: -inf for the padding before a prompt, else 0
        self.padding = torch.zeros(rows, shape.slots, dtype=self.dtype, device=device)
        self.guidance, self.last_position = shape.guidance, spec.max_positions - 1

    @property
    def slots(self) -> int:
        """Token slots per row."""
        return self.memory[0].shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(memory.nbytes for memory in self.memory)

    def grow(self, slots: int) -> None:
        """Make room for at least so many slots per row."""
        if slots <= self.slots:
            return
        more = max(slots - self.slots, _LEAST_GROWTH)
        self.memory = tuple(F.pad(memory, (0, 0, 0, more)) for memory in self.memory)
        self.padding = F.pad(self.padding, (0, more))

    def rows(self, image: int) -> slice:
        """Return the rows of an image."""
        return slice(image * self.guidance, (image + 1) * self.guidance)

    def prefill(
        self, image: int, length: int, starts: Tensor, origins: Tensor | None = None
    ) -> Context:
        """Return the context of an image's prompt, which fills its first slots.

        Args:
            image: whose rows begin again.
            length: tokens of the prompt, padding included.
            starts: (guidance,) slot of a row's first token; the slots before it are padding.
            origins: (guidance,) slot of rotary position 0; None for that of the first token.
        """
        rows, device = self.rows(image), self.origins.device
        self.origins[rows] = starts if origins is None else origins
        slots = arange(length, device)
        is_padding = slots < starts[:, None]  # (guidance, length)
        self.padding[rows] = 0  # they may hold an earlier prompt's padding
        self.padding[rows, :length].masked_fill_(is_padding, -torch.inf)
        earlier = slots <= slots[:, None]
        visible = earlier & ~is_padding[:, None]  # (guidance, length, length)
        itself = slots == slots[:, None]  # also of padding, so that no softmax is empty
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=device)
        mask.masked_fill_(~(visible | itself), -torch.inf)
        # padding before position 0 has no row in the rotary table
        positions = (slots - self.origins[rows, None]).clamp(0, self.last_position)
        memory = tuple(layers[:, rows].narrow(3, 0, length) for layers in self.memory)
        written = slots.expand(self.guidance, -1)
        ends = torch.full((self.guidance,), length, device=device)
        return Context(positions, mask[:, None], CachePass(memory, written, ends, self.guidance))

    def begin_as(self, image: int, other: int, length: int) -> None:
        """Take over another image's prompt, its first `length` slots."""
        new, old = self.rows(image), self.rows(other)
        for memory in self.memory:
            memory[:, new, :, :length] = memory[:, old, :, :length]
        for values in (self.origins, self.padding):
            values[new] = values[old]

    def move(self, lengths: Tensor, path: Tensor) -> None:
        """Bring the tokens at offsets path (images, n) from lengths (images,) to the front.

        Of images that keep fewer than n, the next pass overwrites what follows.
        """
        lengths = lengths[:, None]
        source = (lengths + path).repeat_interleave(self.guidance, 0)  # (rows, n)
        front = arange(path.shape[1], path.device)
        slots = (lengths + front).repeat_interleave(self.guidance, 0)
        for memory in self.memory:
            # As wider numbers, of which there are fewer: on a GPU that takes a third of the time.
            # A head of every model has a multiple of 8 bytes.
            memory, device = memory.view(torch.int64), memory.device
            rows = arange(len(source), device)[:, None]
            # a copy, since old and new slots overlap; torch puts indexed dimensions first where a
            # slice separates them
            kept = memory[:, rows, :, source.to(device)]  # (rows, n, 2 layers, kv_heads, head_dim)
            memory[:, rows, :, slots.to(device)] = kept


class CacheView:
    """The committed slots of a round's images, as its forward passes see them.

    What all passes share is computed once: which committed slots a row sees, and where its rotary
    positions begin.
    """

    def __init__(self, cache: KVCache, lengths: Tensor, most: int, room: int):
        """Look at a cache.

        Args:
            cache: whose slots are seen.
            lengths: (images,) committed slots.
            most: no image has more.
            room: slots that passes write, at most.
        """
        assert most + room <= cache.slots, f"cache overflow: {most} + {room} of {cache.slots} slots"
        device = cache.origins.device
        self.cache, self.most = cache, most
        self.lengths = lengths.repeat_interleave(cache.guidance)[:, None]  # (rows, 1)
        uncommitted = arange(most + room, device) >= self.lengths
        padding = cache.padding[:, : most + room]
        self.mask = padding.masked_fill(uncommitted, -torch.inf)[:, None]  # (rows, 1, slots)
        # one more than the room: in `open`, the slot after the last one ends what a row sees
        self.slots = self.lengths + arange(room + 1, device)  # (rows, room + 1) after the committed
        self.offset = (self.lengths - cache.origins[:, None]).unflatten(0, (-1, cache.guidance))

    def open(self, depths: Tensor, visible: Tensor) -> Context:
        """Return the context of a pass over n new tokens after the committed ones.

        Args:
            depths: (images, n) distance of each new token from the first slot after the committed
                ones, for its rotary position.
            visible: (images, n, m) bool, m >= n: what the new tokens see of the m latest tokens,
                themselves last; the m - n others were written since the last commit.
        """
        (n, m), guidance = visible.shape[1:], self.cache.guidance
        stop, slots = self.most + m, self.slots[:, :m]
        mask = _latest_seen(self.mask[..., :stop], slots, visible, guidance)
        positions = _positions(depths, self.offset, self.cache.last_position)
        memory = tuple(memory.narrow(3, 0, stop) for memory in self.cache.memory)
        cache_pass = CachePass(memory, slots[:, m - n :], self.slots[:, m], guidance)
        return Context(positions, mask[:, None], cache_pass)


@fused
def _latest_seen(mask: Tensor, slots: Tensor, visible: Tensor, guidance: int) -> Tensor:
    """Return masks (rows, n, slots): what rows see of the committed, and of the latest tokens.

    Args:
        mask: (rows, 1, slots) 0 for what a row sees of the committed tokens, else -inf.
        slots: (rows, m) of the latest tokens.
        visible: (images, n, m) bool: what n new tokens see of them.
        guidance: rows of an image.
    """
    latest = torch.where(visible, 0.0, -torch.inf).to(mask.dtype).repeat_interleave(guidance, 0)
    n = visible.shape[1]
    # scattered, since the latest tokens of every row begin at its own length
    return mask.expand(-1, n, -1).scatter(2, slots[:, None].expand(-1, n, -1), latest)


@fused
def _positions(depths: Tensor, offset: Tensor, last: int) -> Tensor:
    """Return rotary positions (rows, n) of depths (images, n); offset: (images, guidance, 1)."""
    # absent nodes of an image that is nearly complete may be beyond the rotary table
    return (depths[:, None] + offset).flatten(0, 1).clamp(0, last)
