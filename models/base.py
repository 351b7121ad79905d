"""What a target model is to the engine, and what a forward pass takes."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


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
    qk_norm: bool = True  # LayerNorm with an affine per head, on queries and keys before rotation (Chameleon)
    swin_norm: bool = False  # norms on the outputs of attention and MLP instead of their inputs (Chameleon 34B)
    first_norm: bool = True  # EAGLE heads of Llama targets have no input norm in layer 0
    layer_devices: tuple[torch.device, ...] | None = None  # where each layer computes, if not all where the head is

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
    mask: Tensor | None = None  # additive, broadcastable to (rows, 1, n, m); None without cache means causal
    cache: Cache | None = None

    def to(self, device: torch.device) -> "Context":
        """The same where another layer computes; the cache knows its layers' devices itself."""
        mask = None if self.mask is None else self.mask.to(device)
        return Context(self.positions.to(device), mask, self.cache)


@dataclass(frozen=True)
class ImageGrid:
    """Image tokens in raster order."""

    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class ImageVocab:
    """The ids that are image tokens: `size` neighbouring ids from `first_id` on. Inside the engine they are codes from
    0."""

    first_id: int
    size: int


@dataclass(frozen=True)
class PromptRows:
    """The prompt of one image: ids (guidance, length), padded on the left; row r begins at starts[r]."""

    ids: Tensor
    starts: Tensor


@dataclass(frozen=True)
class TargetOptions:
    """How a target is loaded, and what only some models ask for."""

    dtype: torch.dtype
    device: torch.device
    tokenizer_path: str | None = None  # folder or hub id, of models whose tokenizer files may lie apart


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
