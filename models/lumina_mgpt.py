"""Lumina-mGPT (arXiv 2408.02657): Chameleon's transformer and image tokens, images of many sizes.

An image is `<racm3:break>`, its height and its width in cells of 32 pixels, then its rows of tokens, each closed by
`<reserved08799>`. The prompt holds everything up to the width; the ends of rows are forced (`ImageGrid.row_end`).
"""

import re

from models.base import ImageGrid, PromptRows, TargetOptions
from models.chameleon import BEGIN_IMAGE, END_OF_TURN, Chameleon, ChameleonVocab
from models.vqgan import ImageTokenizer

ROW_END = "<reserved08799>"
CELL = 32  # pixels
LARGEST = 1024  # side of the largest square that a public checkpoint was trained on
STRETCH = 4.0  # greatest ratio of the sides
DEFAULT_SIZE = "768x768"


def parse_size(text: str) -> tuple[int, int]:
    """Width and height in pixels of "768" or "1024x576".

    Raises:
        ValueError: the text is no size; a side is no multiple of 32; the image is larger than 1024 x 1024 or longer
            than four times its other side. The public checkpoints know areas of about 512, 768 or 1024 squared.
    """
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    width, height = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    sides = min(width, height), max(width, height)
    fits = sides[0] > 0 and not width % CELL and not height % CELL
    if not fits or width * height > LARGEST**2 or sides[1] > STRETCH * sides[0]:
        raise ValueError(
            f"--target_size: found {text!r}; allowed: a side, or width x height as 1024x576, in multiples of {CELL}, "
            f"at most {LARGEST} x {LARGEST} pixels and {STRETCH:g} to 1"
        )
    return width, height


class LuminaMgpt(Chameleon):
    """Text-to-image with a Lumina-mGPT checkpoint."""

    name = "lumina_mgpt"

    @classmethod
    def image_grid(cls, images: ImageTokenizer, words: ChameleonVocab, options: TargetOptions) -> ImageGrid:
        width, height = parse_size(options.target_size or DEFAULT_SIZE)
        rows, columns = height // images.downsampling, width // images.downsampling
        return ImageGrid(rows, columns, words[ROW_END] - words.image.first_id)

    def prompt(self, text: str, guidance: int) -> PromptRows:
        """The user's turn, an empty answer's begin and the image's size; the unconditional row begins at the image."""
        rows, columns = (side * self.images.downsampling // CELL for side in (self.grid.rows, self.grid.columns))
        request = f"Generate an image of {columns * CELL}x{rows * CELL} according to the following prompt:\n{text}"
        image = [self.words[BEGIN_IMAGE], self._size(rows), self._size(columns)]
        return self.framed(request, [self.words[END_OF_TURN], *image], image, guidance)

    def _size(self, cells: int) -> int:
        return self.words[f"<reserved{8800 + cells:05d}>"]
