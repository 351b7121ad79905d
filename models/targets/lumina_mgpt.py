"""Lumina-mGPT (arXiv 2408.02657): Chameleon's transformer and image tokens, images of many sizes.

An image is `<racm3:break>`, its height and its width in units of 32 pixels, then its rows of
tokens, each closed by `<reserved08799>`. The prompt holds everything up to the width; the row ends
are forced (`ImageGrid.row_end`).
"""

from configs.image_size import LUMINA_MGPT, parse_size
from models.base import ImageGrid, PromptRows, TargetOptions
from models.codecs.codec import ADM
from models.codecs.vqgan_config import VqganConfig
from models.files.tokenizer_file import row_ids
from models.targets.chameleon import BEGIN_IMAGE, END_OF_TURN, Chameleon, ChameleonVocab

ROW_END = "<reserved08799>"


class LuminaMgpt(Chameleon):
    """Text-to-image with a Lumina-mGPT checkpoint."""

    name = "lumina_mgpt"
    fit = ADM

    @classmethod
    def image_grid(
        cls, vqgan: VqganConfig, words: ChameleonVocab, options: TargetOptions
    ) -> ImageGrid:
        width, height = parse_size(options.target_size or LUMINA_MGPT.default)
        rows, columns = height // vqgan.downsampling, width // vqgan.downsampling
        for side in (height, width):
            if size_token(side) not in words.ids:
                raise ValueError(
                    f"--target_size {width}x{height}: the tokenizer has no token for a side of "
                    f"{side} pixels, {size_token(side)!r}"
                )
        return ImageGrid(rows, columns, words[ROW_END] - words.image.first_id)

    def prompt(self, text: str, guidance: int) -> PromptRows:
        """Return the user's turn, the begin of the answer and the image's size.

        The unconditional row begins at the image.
        """
        height, width = (
            side * self.images.downsampling for side in (self.grid.rows, self.grid.columns)
        )
        sizes = [self.words[size_token(side)] for side in (height, width)]
        image = [self.words[BEGIN_IMAGE], *sizes]
        tail = [self.words[END_OF_TURN], *image]
        return self.framed(_request(width, height, text), tail, image, guidance)

    @classmethod
    def shortest_prompt(cls, words: ChameleonVocab, grid: ImageGrid, cell: int) -> int:
        request = _request(grid.columns * cell, grid.rows * cell, "")
        request_ids = row_ids(words.tokenizer, request)
        return super().shortest_prompt(words, grid, cell) + len([*request_ids, "height", "width"])


def _request(width: int, height: int, text: str) -> str:
    """Return the user's turn for an image of a size in pixels."""
    return f"Generate an image of {width}x{height} according to the following prompt:\n{text}"


def size_token(side: int) -> str:
    """Return the name of the token of a height or width in pixels."""
    return f"<reserved{8800 + side // LUMINA_MGPT.cell:05d}>"
