"""Targets that consist of a transformer, an image tokenizer and what makes their prompts."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from models.base import Context, ImageGrid, ImageVocab, Layers, PromptRows, TransformerSpec
from models.codecs.token_picture import TokenPicture
from models.codecs.vqgan import ImageTokenizer
from models.transformer import Transformer


class PromptMaker(Protocol):
    """What a target needs of its prompts (`models.targets.prompts.Prompts`)."""

    vocab: ImageVocab
    grid: ImageGrid

    def rows(self, text: str, guidance: int, device: torch.device) -> PromptRows: ...

    def length(self, text: str) -> int: ...


class TransformerTarget:
    """A `TargetModel` of any family."""

    def __init__(
        self,
        name: str,
        transformer: Transformer,
        prompts: PromptMaker,
        images: ImageTokenizer,
        drafter: Callable[[dict, TransformerSpec], TransformerSpec],
    ):
        """name, drafter: of the family."""
        self.name, self.transformer, self.prompts, self.images = name, transformer, prompts, images
        self.spec, self.grid, self.vocab = transformer.spec, prompts.grid, prompts.vocab
        weight = transformer.norm.weight
        self.dtype, self.device = weight.dtype, weight.device
        self._drafter = drafter

    def place(self, device: torch.device) -> None:
        """Move all but the transformer to a device, on which ids and features are from now on."""
        self.device, self.images = device, self.images.to(device)

    def prompt(self, text: str, guidance: int) -> PromptRows:
        return self.prompts.rows(text, guidance, self.device)

    def length(self, text: str) -> int:
        return self.prompts.length(text)

    def read(self, prompt: PromptRows, context: Context, layers: Layers = ()) -> Tensor:
        return self.features(prompt.ids, context, layers)

    def features(self, ids: Tensor, context: Context, layers: Layers = ()) -> Tensor:
        return self.transformer(ids, context, layers)

    def score(self, features: Tensor) -> Tensor:
        return self.transformer.score(features)

    def embedding(self) -> Tensor:
        return self.transformer.embedding.weight

    def drafter_spec(self, config: dict) -> TransformerSpec:
        return self._drafter(config, self.spec)

    @property
    def pictured(self) -> bool:
        return not isinstance(self.images, TokenPicture) or self.images.painter is not None

    def picture(self, codes: Tensor, text: str, seed: int) -> Tensor:
        if isinstance(self.images, TokenPicture) and self.images.painter is not None:
            size = self.grid.rows, self.grid.columns
            return self.images.painter.paint(codes, size, text, seed)
        return self.to_image(codes[None])[0]

    def to_image(self, codes: Tensor) -> Tensor:
        return self.images.decode(codes, (self.grid.rows, self.grid.columns))
