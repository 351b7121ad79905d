"""A target model: a transformer, an image tokenizer and what makes its prompts."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.base import Context, Layers, PromptRows, TransformerSpec
from models.transformer import Transformer

if TYPE_CHECKING:  # so that the engine, which knows a target, loads no codec
    from models.codecs.glm_codec import TokenPicture
    from models.codecs.palette import Palette
    from models.codecs.vqgan import ImageTokenizer
    from models.targets.prompts import Prompts

    Images = ImageTokenizer | Palette | TokenPicture  # what makes pixels of codes


class TargetModel:
    """An autoregressive image model: text in, image codes out."""

    def __init__(
        self,
        transformer: Transformer,
        prompts: "Prompts",
        images: "Images",
        drafter: Callable[[dict, TransformerSpec], TransformerSpec],
    ):
        """drafter: of the family."""
        self.transformer, self.prompts, self.images = transformer, prompts, images
        self.spec, self.grid, self.vocab = transformer.spec, prompts.grid, prompts.vocab
        weight = transformer.norm.weight
        self.dtype, self.device = weight.dtype, weight.device
        self.drafter = drafter  # its family's: config.json, the target's sizes -> a drafter's sizes

    def move(self, device: torch.device) -> None:
        """Move all but the transformer to a device, on which ids and features are from now on."""
        self.device, self.images = device, self.images.to(device)
        self.prompts.move(device)

    def prompt(self, text: str, guidance: int) -> PromptRows:
        """Return the conditional row of a text and, with guidance 2, the unconditional one.

        ValueError if the text is too long.
        """
        return self.prompts.rows(text, guidance, self.device)

    def length(self, text: str) -> int:
        """Return the tokens of a text's prompt, with less work than `prompt`; errors as there."""
        return self.prompts.length(text)

    def read(self, prompt: PromptRows, context: Context, layers: Layers = ()) -> Tensor:
        """Prompt -> features after the final norm (guidance, length, hidden).

        Those of padding are arbitrary. layers: as for `features`.
        """
        return self.prompts.read(self.transformer, prompt, context, layers)

    def features(self, ids: Tensor, context: Context, layers: Layers = ()) -> Tensor:
        """Token ids (rows, n) -> features after the final norm (rows, n, hidden).

        layers: after which the hidden states are also returned, in rising order. Each passes the
        final norm, and they stand behind the features: (rows, n, (1 + layers) hidden).
        """
        return self.transformer(ids, context, layers)

    def score(self, features: Tensor) -> Tensor:
        """Features (rows, n, hidden) -> logits of the image codes (rows, n, vocab.size).

        Hidden states that stand behind the features are left out.
        """
        return self.transformer.score(features)

    def embedding(self) -> Tensor:
        """Return the embeddings of all token ids (spec.vocab, hidden)."""
        return self.transformer.embedding.weight

    def drafter_spec(self, config: dict) -> TransformerSpec:
        """Return the sizes in a drafter's config.json; ValueError if it is for another target."""
        return self.drafter(config, self.spec)

    @property
    def pictured(self) -> bool:
        """Whether `picture` makes pictures, not only images of tokens."""
        return getattr(self.images, "painter", True) is not None  # a VQGAN needs no painter

    def picture(self, codes: Tensor, text: str, seed: int) -> Tensor:
        """A finished image's codes (grid.tokens,) -> pixels (height, width, 3), uint8 on the CPU.

        text, seed: of the image, for painters that have noise of their own.
        """
        if (painter := getattr(self.images, "painter", None)) is not None:
            return painter.paint(codes, (self.grid.rows, self.grid.columns), text, seed)
        return self.to_image(codes[None])[0]

    def to_image(self, codes: Tensor) -> Tensor:
        """Codes (images, grid.tokens) -> pixels (images, height, width, 3), uint8 on the CPU.

        Also of unfinished images, so a painter that takes long makes none of these.
        """
        return self.images.decode(codes, (self.grid.rows, self.grid.columns))
