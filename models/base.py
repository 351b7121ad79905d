"""What a target model is to the engine."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from models.transformer import Context, TransformerSpec


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


class TargetModel(Protocol):
    """An autoregressive image model: text in, image codes out."""

    name: str
    spec: TransformerSpec
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

    def to_image(self, codes: Tensor) -> Tensor:
        """Codes (images, grid.tokens) -> pixels (images, height, width, 3), uint8 on the CPU."""
