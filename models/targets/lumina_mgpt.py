"""Lumina-mGPT (arXiv 2408.02657): Chameleon's transformer and image tokens, images of many sizes.

An image is `<racm3:break>`, its height and its width in units of 32 pixels, then its rows of
tokens, each closed by `<reserved08799>`. The prompt holds everything up to the width; the row ends
are forced (`ImageGrid.row_end`).

Lumina-mGPT 2.0 (2507.17801) has this layout, Qwen2's words and MoVQGAN's codes. A token covers 8 x
8 pixels, so an image of 768 x 768 is 96 rows of 96 tokens and a row end. The tokenizer has no
tokens for the image codes: their ids are fixed. tokenizer_config.json names the token that prompts
begin with, and where there is no token for the end of a turn, its name is text.
"""

from pathlib import Path

from configs.targets import TARGETS, parse_size
from models.base import ImageGrid, ImageVocab, TargetOptions, TransformerSpec
from models.codecs.codec import ADM
from models.codecs.vqgan_files import VqganFiles, movqgan_files
from models.files.entries import refuse_entry
from models.files.names import BUNDLED_VQGAN, HUB_TOKENIZER
from models.files.network import Network
from models.files.tokenizer_file import load_tokenizer, row_ids
from models.targets.chameleon import (
    BEGIN_IMAGE,
    BOS,
    END_OF_TURN,
    PAD,
    Chameleon,
    ChameleonPrompts,
)
from models.targets.family import Family
from models.targets.llama import decoder_keys, decoder_network, decoder_spec
from models.targets.llamagen import given_path
from models.targets.prompts import Words
from support.json_files import read_object

ROW_END = "<reserved08799>"
FIRST_CODE = 155_000  # id of image code 0
_CODES = 16_384  # of the published codec; config.json does not tell


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


class LuminaMgpt2Words(Words):
    """Token ids of tokenizer.json, with a begin of prompts of its own."""

    def __init__(self, folder: Path):
        path, self.begin = folder / HUB_TOKENIZER, _begin(folder / "tokenizer_config.json")
        super().__init__(load_tokenizer(path), path, (self.begin, BEGIN_IMAGE, ROW_END))

    def __getitem__(self, name: str) -> int | str:
        if name == END_OF_TURN and self.tokenizer.token_to_id(name) is None:
            return name
        return super().__getitem__(self.begin if name == BOS else name)


def _begin(path: Path) -> str:
    """Return the name of the token that the authors' code puts first: BOS, or EOS without one."""
    config = read_object(path)
    token = config.get("bos_token") or config.get("eos_token")
    name = token.get("content") if isinstance(token, dict) else token
    if not isinstance(name, str):
        raise ValueError(f"{path} has no bos_token and no eos_token")
    return name


class LuminaMgpt2Prompts(LuminaPrompts):
    """The rows of Lumina-mGPT, for smaller tokens."""

    # Padding is masked, so any id will do; the tokenizer need not have `<pad>`.
    pad = BOS
    sizes = TARGETS["lumina_mgpt2"].sizes

    def first_code(self) -> int:
        return FIRST_CODE


class LuminaMgpt2(Family):
    """Text-to-image with a Lumina-mGPT 2.0 checkpoint."""

    name = "lumina_mgpt2"
    prompts = LuminaMgpt2Prompts
    image_part, image_flag = "image codec", "vq_path"
    drafter = Chameleon.drafter

    def spec(self, config: dict) -> TransformerSpec:
        spec = decoder_spec(config)
        if spec.vocab <= FIRST_CODE:
            expected = f"more than {FIRST_CODE}, the id of --model {self.name}'s first image code"
            refuse_entry("vocab_size", spec.vocab, expected)
        return spec

    def network(self, config: dict, vocab: ImageVocab | None = None) -> Network:
        spec = self.spec(config)
        vocab = vocab or ImageVocab(FIRST_CODE, min(_CODES, spec.vocab - FIRST_CODE))
        return decoder_network(spec, vocab, decoder_keys(spec, vocab), ignored=(BUNDLED_VQGAN,))

    def words(self, folder: Path, options: TargetOptions) -> LuminaMgpt2Words:
        return LuminaMgpt2Words(folder)

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        return movqgan_files(Path(given_path(options, "vq_path")))
