"""Prompts as rows of token ids, and the room that they find before an image."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from configs.fields import refuse
from configs.targets import ImageSizes, parse_size
from models.base import (
    Context,
    ImageGrid,
    ImageVocab,
    Layers,
    PromptRows,
    TargetOptions,
    TransformerSpec,
)
from models.files.tokenizer_file import require_tokens
from models.files.weights import TEXT_TOKENIZER
from models.transformer import Transformer


class Words:
    """A text tokenizer: token ids by name; no id is written in code."""

    def __init__(
        self, tokenizer: Tokenizer, path: Path = Path(TEXT_TOKENIZER), frame: Iterable[str] = ()
    ):
        """frame: names of the tokens around a prompt; ValueError if one is missing in `path`."""
        require_tokens(tokenizer, frame, path)
        self.tokenizer, self.path, self.ids = tokenizer, path, tokenizer.get_vocab()

    @property
    def image(self) -> ImageVocab | None:
        """The ids of the image codes, where the tokenizer names them."""
        return None

    def __getitem__(self, name: str) -> int:
        require_tokens(self.tokenizer, [name], self.path)
        return self.ids[name]

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def __str__(self) -> str:
        text, image = f"{self.path}: {len(self)} ids", self.image
        if image is None:
            return text
        return f"{text}, image codes {image.first_id} to {image.first_id + image.size - 1}"


@dataclass(frozen=True)
class ImageCodes:
    """What an image tokenizer makes of a picture, known without its weights."""

    count: int  # codes
    side: int  # tokens per row and column of an image of the usual size
    cell: int  # pixels per token along one side


class Prompts:
    """The prompt rows of a text for images of one size.

    A family defines `ids` and `empty`, and where they differ, the image's grid and ids.
    """

    pad = "<pad>"
    sizes: ImageSizes | None = None  # that --target_size may be; None: images have one size
    row_end: str | None = None  # name of the token that ends every row of an image

    def __init__(
        self, words: Words, codes: ImageCodes, spec: TransformerSpec, options: TargetOptions
    ):
        """Raise a ValueError unless tokenizers and transformer fit together for an image."""
        self.words, self.codes, self.options = words, codes, options
        self.vocab = self.image_vocab(spec)
        self.grid = self.image_grid()
        if self.grid.tokens == 1:  # the prompt's pass decides it, so no round is left to decode
            refuse("target_size", f"{options.target_size}, one token", "two tokens or more")
        needed = self.grid.slots(self.grid.tokens)
        self.room = spec.max_positions - needed
        if self.room < 1:
            raise ValueError(
                f"config.json: max_position_embeddings is {spec.max_positions}; "
                f"an image of {self.grid.rows} x {self.grid.columns} tokens takes {needed}"
            )

    def image_vocab(self, spec: TransformerSpec) -> ImageVocab:
        """Return the ids of the image codes; ValueError unless all parts have as many."""
        words, vocab, count = self.words, self.words.image, self.codes.count
        if vocab is None:
            vocab = ImageVocab(self.first_code(), count)
            if vocab.first_id + count > spec.vocab:
                raise ValueError(
                    f"the image tokenizer has {count} codes, of which the first has the id "
                    f"{vocab.first_id}; config.json has only {spec.vocab} ids"
                )
            return vocab
        # other codes would fail only at the very end, other ids in the middle of a prompt
        highest = max(words.ids.values())
        if vocab.size != count or highest >= spec.vocab:
            raise ValueError(
                f"{words.path} names {vocab.size} image codes from id {vocab.first_id} on and ids "
                f"up to {highest}; the image tokenizer has {count} codes, config.json "
                f"{spec.vocab} ids"
            )
        return vocab

    def first_code(self) -> int:
        """Return the id of image code 0, of families whose tokenizers do not name the codes."""
        raise NotImplementedError

    def image_grid(self) -> ImageGrid:
        """Return the grid of the image's tokens; ValueError if that size cannot be generated."""
        if self.sizes is None:
            return ImageGrid(self.codes.side, self.codes.side)
        width, height = self.asked_size()
        row_end = None if self.row_end is None else self.words[self.row_end] - self.vocab.first_id
        return ImageGrid(height // self.codes.cell, width // self.codes.cell, row_end)

    def asked_size(self) -> tuple[int, int]:
        """Return width and height of the image in pixels."""
        assert self.sizes is not None, "families whose images have one size do not ask"
        return parse_size(self.options.target_size or self.sizes.default, self.sizes)

    def ids(self, text: str) -> list[int]:
        """Return the ids of the conditional row of a text."""
        raise NotImplementedError

    def empty(self, row: list[int]) -> list[int]:
        """Return the unconditional row beside a conditional one."""
        raise NotImplementedError

    @property
    def shortest(self) -> int:
        """Tokens of the longest row of a prompt without text."""
        row = self.ids("")
        return max(len(row), len(self.empty(row)))

    def row(self, text: str) -> list[int]:
        """Return the ids of the conditional row; ValueError if the text is too long."""
        row = self.ids(text)
        if len(row) > self.room:
            raise ValueError(
                f"the prompt is {len(row)} tokens long, including the model's own; at most "
                f"{self.room} fit: {text[:60]!r}"
            )
        return row

    def rows(self, text: str, guidance: int, device: torch.device) -> PromptRows:
        """Return the conditional row and, with guidance 2, the unconditional one."""
        row = self.row(text)
        rows = [row, self.empty(row)] if guidance > 1 else [row]
        longest = max(map(len, rows))
        starts = [longest - len(row) for row in rows]
        pad = self.words[self.pad]
        # padding on the left, so that the images of both rows begin in the same slot
        ids = [[pad] * start + row for start, row in zip(starts, rows, strict=True)]
        return PromptRows(torch.tensor(ids, device=device), torch.tensor(starts, device=device))

    def length(self, text: str) -> int:
        """Return the tokens of the longest row; ValueError if the text is too long."""
        row = self.row(text)
        return max(len(row), len(self.empty(row)))

    def read(
        self, transformer: Transformer, prompt: PromptRows, context: Context, layers: Layers
    ) -> Tensor:
        """Return the transformer's features of a prompt, as `TargetModel.read`."""
        return transformer(prompt.ids, context, layers)

    def move(self, device: torch.device) -> None:
        """Move networks that make prompts to a device."""
