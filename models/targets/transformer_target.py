"""The base of targets that consist of a transformer and an image tokenizer."""

import torch
from torch import Tensor

from models.base import Context, ImageGrid, Layers, PromptRows
from models.codecs.vqgan import ImageTokenizer
from models.transformer import Transformer


class TransformerTarget:
    """The forward passes of a `TargetModel`; its families add loading and prompts."""

    transformer: Transformer
    images: ImageTokenizer
    grid: ImageGrid
    device: torch.device

    def place(self, device: torch.device) -> None:
        """Move all but the transformer to a device, on which ids and features are from now on."""
        self.device, self.images = device, self.images.to(device)

    def length(self, text: str) -> int:
        return self.prompt(text, 1).ids.shape[1]

    def read(self, prompt: PromptRows, context: Context, layers: Layers = ()) -> Tensor:
        return self.features(prompt.ids, context, layers)

    def features(self, ids: Tensor, context: Context, layers: Layers = ()) -> Tensor:
        return self.transformer(ids, context, layers)

    def score(self, features: Tensor) -> Tensor:
        return self.transformer.score(features)

    def embedding(self) -> Tensor:
        return self.transformer.embedding.weight

    def to_image(self, codes: Tensor) -> Tensor:
        return self.images.decode(codes, (self.grid.rows, self.grid.columns))
