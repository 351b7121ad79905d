"""Lumina-mGPT (arXiv 2408.02657): Chameleon's transformer and image tokens, images of many sizes.

An image is `<racm3:break>`, its height and its width in units of 32 pixels, then its rows of
tokens, each closed by `<reserved08799>`. The prompt holds everything up to the width; the row ends
are forced (`ImageGrid.row_end`).
"""

from configs.targets import TARGETS, parse_size
from models.base import ImageGrid
from models.codecs.codec import ADM
from models.files.tokenizer_file import row_ids
from models.targets.chameleon import (
    BEGIN_IMAGE,
    BOS,
    END_OF_TURN,
    PAD,
    Chameleon,
    ChameleonPrompts,
)

ROW_END = "<reserved08799>"


class LuminaPrompts(ChameleonPrompts):
    """The user's turn, the begin of the answer, the image's size; the other row begins there."""

    sizes = TARGETS["lumina_mgpt"].sizes

    def image_grid(self) -> ImageGrid:
        width, height = parse_size(self.options.target_size or self.sizes.default, self.sizes)
        for side in (height, width):
            if self.words.tokenizer.token_to_id(size_token(side)) is None:
                raise ValueError(
                    f"--target_size {width}x{height}: the tokenizer has no token for a side of "
                    f"{side} pixels, {size_token(side)!r}"
                )
        row_end = self.words[ROW_END] - self.vocab.first_id
        return ImageGrid(height // self.codes.cell, width // self.codes.cell, row_end)

    def ids(self, text: str) -> list[int]:
        words, (width, height) = self.words, self._size
        request = f"Generate an image of {width}x{height} according to the following prompt:\n"
        tail = words[END_OF_TURN], *self.empty([])
        return row_ids(words.tokenizer, words[BOS], f"{request}{text}", *tail)

    def empty(self, row: list[int]) -> list[int]:
        width, height = self._size
        names = BEGIN_IMAGE, size_token(height), size_token(width)
        return [self.words[name] for name in names]

    @property
    def _size(self) -> tuple[int, int]:
        """Width and height of the image in pixels."""
        return self.grid.columns * self.codes.cell, self.grid.rows * self.codes.cell


class LuminaMgpt(Chameleon):
    """Text-to-image with a Lumina-mGPT checkpoint."""

    name = "lumina_mgpt"
    prompts = LuminaPrompts
    fit = ADM
    frame = (BOS, PAD, END_OF_TURN, BEGIN_IMAGE, ROW_END)


def size_token(side: int) -> str:
    """Return the name of the token of a height or width in pixels."""
    return f"<reserved{8800 + side // TARGETS['lumina_mgpt'].sizes.cell:05d}>"
