"""What a target model is to the engine, and what a forward pass takes."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ImageRope:
    """Rotation by row and column of the image (LlamaGen, arXiv 2406.06525) in place of that by position.

    condition: positions before the image; queries and keys there become zero vectors. side: image tokens per row and
    column.
    """

    condition: int
    side: int


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
    qk_norm: bool = (
        True  # LayerNorm with an affine per head, on queries and keys before rotation (Chameleon)
    )
    swin_norm: bool = (
        False  # norms on the outputs of attention and MLP instead of their inputs (Chameleon 34B)
    )
    first_norm: bool = True  # EAGLE heads of Llama targets have no input norm in layer 0
    image_rope: ImageRope | None = None
    hides_padding: bool = (
        True  # LlamaGen's drafters were trained to see the padding before a prompt
    )
    layer_devices: tuple[torch.device, ...] | None = (
        None  # where each layer computes, if not all where the head is
    )

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class Cache(Protocol):
    """What a forward pass needs of a cache."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (rows, kv_heads, n, head_dim); return all visible ones (rows, kv_heads, m,
        head_dim)."""


class RowsCache(Cache, Protocol):
    """A cache whose rows may pass apart."""

    guidance: int  # neighbouring rows that belong to one image

    def part(self, rows: slice) -> Cache:
        """What a forward pass over these rows alone writes and reads."""


@dataclass(frozen=True)
class Context:
    """Where the tokens of one forward pass stand and what they may see."""

    positions: Tensor  # (rows, n) rotary positions
    mask: Tensor | None = (
        None  # additive, broadcastable to (rows, 1, n, m); None without cache means causal
    )
    cache: Cache | None = None

    def to(self, device: torch.device) -> "Context":
        """The same where another layer computes; the cache knows its layers' devices itself."""
        mask = None if self.mask is None else self.mask.to(device)
        return Context(self.positions.to(device), mask, self.cache)


@dataclass(frozen=True)
class ImageGrid:
    """Image tokens in raster order; in some models a token that nothing decides closes every row.

    row_end: that token, as a code (id - first_id); None in models without one.
    """

    rows: int
    columns: int
    row_end: int | None = None

    @property
    def tokens(self) -> int:
        return self.rows * self.columns

    def slots(self, position: Tensor | int) -> Tensor | int:
        """Tokens of the sequence, row ends included, before image token number `position`."""
        return position if self.row_end is None else position + position // self.columns

    def block(self, nodes: int) -> int:
        """The most tokens of the sequence that a tree with so many nodes takes, its root and row ends included."""
        return (nodes + 1) * (1 if self.row_end is None else 2)


@dataclass(frozen=True)
class ImageVocab:
    """The ids that are image tokens: `size` neighbouring ids from `first_id` on. Inside the engine they are codes from
    0."""

    first_id: int
    size: int


@dataclass(frozen=True)
class PromptRows:
    """The prompt of one image: ids (guidance, length), padded on the left; row r begins at slot starts[r].

    origins: (guidance,) the slot of rotary position 0; None for that of the row's beginning. condition: (guidance,
    length, width) what the target reads in place of ids, in models whose prompts are no tokens; a drafter reads the
    ids.
    """

    ids: Tensor
    starts: Tensor
    origins: Tensor | None = None
    condition: Tensor | None = None

    def part(self, rows: slice) -> "PromptRows":
        """Some of the rows."""
        origins, condition = (
            None if values is None else values[rows] for values in (self.origins, self.condition)
        )
        return PromptRows(self.ids[rows], self.starts[rows], origins, condition)


@dataclass(frozen=True)
class TargetOptions:
    """How a target is loaded, and what only some models ask for."""

    dtype: torch.dtype
    device: torch.device
    tokenizer_path: str | None = (
        None  # folder or hub id of Chameleon's tokenizers, if not at their usual places
    )
    target_size: str | None = None  # pixels, "768" or "1024x576", of models that draw in many sizes
    text_encoder_path: str | None = (
        None  # folder or hub id, of models that read text through an encoder
    )
    vq_path: str | None = (
        None  # file of the image codes, of models that have it apart from their folder
    )


class TargetModel(Protocol):
    """An autoregressive image model: text in, image codes out."""

    name: str
    spec: TransformerSpec
    transformer: nn.Module
    grid: ImageGrid
    vocab: ImageVocab
    dtype: torch.dtype
    device: torch.device

    def prompt(self, text: str, guidance: int) -> PromptRows:
        """The conditional row of a text and, with guidance 2, the unconditional one; ValueError if the text is too
        long."""

    def length(self, text: str) -> int:
        """Tokens of a text's prompt, found with less work than the prompt itself; ValueError as there."""

    def read(self, prompt: PromptRows, context: Context) -> Tensor:
        """A prompt -> features after the final norm (guidance, length, hidden); those of padding are arbitrary."""

    def features(self, ids: Tensor, context: Context) -> Tensor:
        """Token ids (rows, n) -> features after the final norm (rows, n, hidden)."""

    def score(self, features: Tensor) -> Tensor:
        """Features (rows, n, hidden) -> logits of the image codes (rows, n, vocab.size)."""

    def embedding(self) -> Tensor:
        """Embeddings of all token ids (spec.vocab, hidden)."""

    def drafter_spec(self, config: dict) -> TransformerSpec:
        """The transformer of a drafter's config.json; ValueError if it is not for this target."""

    def to_image(self, codes: Tensor) -> Tensor:
        """Codes (images, grid.tokens) -> pixels (images, height, width, 3), uint8 on the CPU."""
