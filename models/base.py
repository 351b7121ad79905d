"""Sizes of a transformer, and the values that a forward pass takes."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from support.constants import arange


@dataclass(frozen=True)
class ImageRope:
    """Rotary embedding by image row and column (LlamaGen, arXiv 2406.06525), not by position."""

    condition: int  # positions before the image; queries and keys there become zero vectors
    side: int  # image tokens per row and per column


@dataclass(frozen=True)
class GridRope:
    """Rotary embedding by time, row and column of two grids (GLM-Image)."""

    width: int  # rotated channels of a head, the first ones; the others keep their values
    sections: tuple[int, ...]  # pairs of channels that turn with time, row, column, time, ...


@dataclass(frozen=True)
class TransformerSpec:
    """Sizes and switches of a transformer."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    max_positions: int
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    # LayerNorm with weights per head, on queries and keys before rotation (Chameleon)
    qk_norm: bool = True
    # of these norms: root mean square, with a weight that all heads share (Emu3.5)
    qk_rms: bool = False
    # norms on the outputs of attention and MLP instead of their inputs (Chameleon 34B)
    swin_norm: bool = False
    sandwich_norm: bool = False  # also norms on the outputs of attention and MLP (GLM-4)
    qkv_bias: bool = False
    gelu: bool = False  # GELU, its tanh approximation, instead of SiLU in the MLP (Gemma)
    # channels of a head, where they are not hidden / heads (Gemma 7B: 256 of 16 heads, hidden 3072)
    head_width: int | None = None
    first_norm: bool = True  # EAGLE heads of Llama targets have no input norm in layer 0
    image_rope: ImageRope | None = None
    grid_rope: GridRope | None = None
    # blocks of Image GPT: learned positions, LayerNorm, biases, an MLP without a gate; attention's
    # output is added to its normed input
    gpt2: bool = False
    # of a drafter: the target's layers after which it also reads the hidden states
    target_layers: tuple[int, ...] = ()
    hides_padding: bool = True  # LlamaGen's drafters were trained to see padding before a prompt
    # device of each layer; None where all compute on the head's
    layer_devices: tuple[torch.device, ...] | None = None

    @property
    def head_dim(self) -> int:
        return self.head_width or self.hidden // self.heads


Layers = tuple[int, ...]  # numbers of layers, counted from 1


class Cache(Protocol):
    """What a forward pass needs of a cache."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values, (rows, kv_heads, n, head_dim); return all visible ones.

        These are (rows, kv_heads, m, head_dim), in the type that attention is computed in.
        """


@dataclass(frozen=True)
class CachePass:
    """What one forward pass over n new tokens writes to a cache, and what it sees of it."""

    # (2 layers, rows, kv_heads, slots, head_dim) for the layers of each device: keys and values in
    # turn, so far as the pass sees them
    memory: tuple[Tensor, ...]
    slots: Tensor  # (rows, n) where the new tokens are written
    ends: Tensor  # (rows,) the slots from here on are masked for all new tokens of a row
    guidance: int  # neighbouring rows that belong to one image

    @cached_property
    def visible(self) -> tuple[Tensor, ...]:
        """Keys and values of every layer in turn, (rows, kv_heads, slots, head_dim) each."""
        # views of all layers at once are cheaper than one by one
        return tuple(chain.from_iterable(memory.unbind(0) for memory in self.memory))

    def seen(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values, (rows, kv_heads, slots, head_dim) each."""
        return self.visible[2 * layer], self.visible[2 * layer + 1]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values (rows, kv_heads, n, head_dim).

        Returns all that the pass sees, (rows, kv_heads, slots, head_dim) each.
        """
        seen = self.seen(layer)
        for memory, new in zip(seen, (keys, values), strict=True):
            rows = arange(len(memory), memory.device)[:, None]
            slots = self.slots.to(memory.device)
            # bf16 networks keep their keys and values in fp32 on CPUs (`attention_dtype`)
            memory.transpose(1, 2)[rows, slots] = new.transpose(1, 2).to(memory.dtype)
        return seen

    def part(self, rows: slice) -> "CachePass":
        """Return what a forward pass over these rows alone writes and sees."""
        memory = tuple(layers[:, rows] for layers in self.memory)
        return CachePass(memory, self.slots[rows], self.ends[rows], self.guidance)


@dataclass(frozen=True)
class Context:
    """Where the tokens of one forward pass stand and which keys they attend to."""

    positions: Tensor  # (rows, n) rotary positions
    # additive, broadcastable to (rows, 1, n, m); None without a cache means causal
    mask: Tensor | None = None
    cache: Cache | None = None

    def to(self, device: torch.device) -> "Context":
        """Return positions and mask on a layer's device; the cache knows its layers' devices."""
        mask = None if self.mask is None else self.mask.to(device)
        return Context(self.positions.to(device), mask, self.cache)


Place = TypeVar("Place", int, Tensor)  # one image position or many


@dataclass(frozen=True)
class ImageGrid:
    """The rows and columns of an image's tokens, in raster order."""

    rows: int
    columns: int
    # In some models the same token ends every row: that token as a code (id - first_id), else None.
    row_end: int | None = None
    # Rows and columns of a small grid of tokens that comes before this one (GLM-Image), if any does
    preview: tuple[int, int] | None = None

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Return rows and columns of the small grid, if there is one, and of this one."""
        small = () if self.preview is None else (self.preview,)
        return [*small, (self.rows, self.columns)]

    @property
    def first(self) -> int:
        """Return the tokens before this grid, those of the small one."""
        return 0 if self.preview is None else self.preview[0] * self.preview[1]

    @property
    def tokens(self) -> int:
        return self.first + self.rows * self.columns

    def __str__(self) -> str:
        return " + ".join(f"{rows} x {columns}" for rows, columns in self.sizes)

    @property
    def widest(self) -> int:
        """Return the columns of the wider grid."""
        return max(columns for _, columns in self.sizes)

    def around(self, position: Place) -> tuple[Place | int, Place | int]:
        """Return columns and first token of the grid that an image token is in."""
        if self.preview is None:
            return self.columns, 0
        # Products instead of torch.where: a position may be a number or a tensor.
        large = position >= self.first
        return self.preview[1] + large * (self.columns - self.preview[1]), large * self.first

    def above(self, position: Place) -> Place:
        """Return the token above an image token; below 0 in a grid's first row."""
        if self.preview is None:
            return position - self.columns
        columns, first = self.around(position)
        above = position - columns
        # Far below 0: the large grid's first row must not find the small grid above it.
        return above - (above < first) * self.tokens

    def slots(self, position: Place) -> Place:
        """Return the sequence's tokens, row ends included, before image token number `position`."""
        return position if self.row_end is None else position + position // self.columns

    def block(self, nodes: int) -> int:
        """Return the most tokens that a tree of so many nodes takes, with its root and row ends."""
        # At worst every node is the last token of a row: siblings stand at the same position.
        return (nodes + 1) * (1 if self.row_end is None else 2)


@dataclass(frozen=True)
class ImageVocab:
    """The ids of image tokens: `size` neighbouring ids from `first_id` on.

    Inside the engine they are codes from 0.
    """

    first_id: int
    size: int

    def ids(self, codes: Tensor, guidance: int) -> Tensor:
        """Return the token ids (images x guidance, n) of codes (images, n), in every row."""
        return (codes + self.first_id)[:, None].expand(-1, guidance, -1).flatten(0, 1)


@dataclass(frozen=True)
class PromptRows:
    """The prompt of one image."""

    ids: Tensor  # (guidance, length), padded on the left
    starts: Tensor  # (guidance,) the first slot of each row
    origins: Tensor | None = None  # (guidance,) slot of rotary position 0; None: the first slot
    # (guidance, length, width) features that the target reads instead of the ids, in models whose
    # prompts are not tokens; a drafter reads the ids
    condition: Tensor | None = None

    def part(self, rows: slice) -> "PromptRows":
        """Return some of the rows."""
        origins, condition = (
            None if values is None else values[rows] for values in (self.origins, self.condition)
        )
        return PromptRows(self.ids[rows], self.starts[rows], origins, condition)


@dataclass(frozen=True)
class TargetOptions:
    """How a target is loaded, and the flags that only some models have."""

    dtype: torch.dtype
    device: torch.device
    # folder or hub id of Chameleon's tokenizers, if they are not at their usual places
    tokenizer_path: str | None = None
    target_size: str | None = None  # pixels, "768" or "1024x576", of models with many sizes
    negative_prompt: str | None = None  # of models whose unconditional row holds one
    text_encoder_path: str | None = None  # folder or hub id, of models with a text encoder
    vq_path: str | None = None  # file of the image tokenizer, of models that have it apart
