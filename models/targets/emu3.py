"""Emu3-Gen (arXiv 2409.18869): image tokens of a vocabulary of 32,768 in rows with ends.

A sequence is `<|extra_203|>text<|image start|>90*90<|image token|>`, then 90 rows of 90 tokens,
each closed by `<|extra_200|>`. The image's height and width in tokens are given as text. The
unconditional row holds a negative prompt in the text's place; rows end at the same slot and each
counts its positions from its own first token.
"""

import unicodedata
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from tokenizers import Tokenizer

from configs.downloads import failed_download
from configs.image_size import EMU3, parse_size
from models.base import ImageGrid, ImageVocab, PromptRows, TargetOptions, TransformerSpec
from models.codecs.codec import ADM, Codec
from models.codecs.movq import MoVQ, load_movq
from models.files.gather import all_of
from models.files.names import HUB_TOKENIZER
from models.files.sizes import fitting_config
from models.files.tiktoken import read_ranks, tokenizer_of
from models.files.tokenizer_file import load_tokenizer, require_tokens, row_ids
from models.files.weights import naming
from models.targets.emu3_network import emu3_network, emu3_spec
from models.targets.llama_target import LlamaTarget
from models.targets.room import refuse_long, room_for_prompts
from models.transformer import Transformer
from support.json_files import read_object

BOS, PAD, ROW_END = "<|extra_203|>", "<|endoftext|>", "<|extra_200|>"
BEGIN_IMAGE, BEGIN_TOKENS = "<|image start|>", "<|image token|>"
FRAME = (BOS, PAD, ROW_END, BEGIN_IMAGE, BEGIN_TOKENS)
_IMAGE = "<|visual token {code:06d}|>"
_RANKS, _VISION = "emu3.tiktoken", "emu3_vision_tokens.txt"  # the authors' files
_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Emu3Vocab:
    """Token ids by name, from tokenizer.json or, where only they are, the authors' files."""

    def __init__(self, folder: Path):
        names = (HUB_TOKENIZER, _RANKS, _VISION)
        here = [name for name in names if (folder / name).is_file()]
        if not here:
            raise ValueError(f"found no {HUB_TOKENIZER}, nor {_RANKS} and {_VISION}, in {folder}")
        from_authors = here[0] != HUB_TOKENIZER
        self.path = folder / (_RANKS if from_authors else HUB_TOKENIZER)
        self.tokenizer = _authors_tokenizer(folder) if from_authors else load_tokenizer(self.path)
        require_tokens(self.tokenizer, FRAME, self.path)

    def __getitem__(self, name: str) -> int:
        require_tokens(self.tokenizer, [name], self.path)
        return self.tokenizer.token_to_id(name)

    @cached_property
    def image(self) -> ImageVocab:
        """The image ids: neighbours, in the order of their codes."""
        first, size = self[_IMAGE.format(code=0)], 1
        while self.tokenizer.token_to_id(_IMAGE.format(code=size)) == first + size:
            size += 1
        return ImageVocab(first, size)


def _authors_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of BAAI/Emu3-Gen; ValueError names a file that cannot be used."""
    ranks, vision = all_of(
        lambda: read_ranks(folder / _RANKS), lambda: _read_names(folder / _VISION)
    )
    extra = (f"<|extra_{number}|>" for number in range(205))
    names = (name.strip() for name in (PAD, "<|im_start|>", "<|im_end|>", *extra, *vision))
    return tokenizer_of(ranks, _WORD, [name for name in names if name])


def _read_names(path: Path) -> list[str]:
    """Return the lines of a file; ValueError names a missing or damaged one."""
    if not path.is_file():
        raise ValueError(f"missing file: {path}")
    try:
        names = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if fault := failed_download(path):  # any text is lines of names
        raise ValueError(f"{path} is {fault}")
    return names


@dataclass(frozen=True)
class Emu3Prompts:
    """The prompt rows of a text.

    grid: of the image that is drawn. room: tokens that a prompt may have. negative: the text of the
    unconditional row.
    """

    words: Emu3Vocab
    grid: ImageGrid
    room: int
    negative: str

    @property
    def shortest(self) -> int:
        """Tokens of the longer row of a prompt without text."""
        return max(len(self._ids(text)) for text in ("", self.negative))

    def row(self, text: str) -> list[int]:
        """Return the ids of a row; ValueError if the text is too long."""
        return refuse_long(self._ids(text), self.room, text)

    def _ids(self, text: str) -> list[int]:
        words, size = self.words, f"{self.grid.rows}*{self.grid.columns}"
        begin = words[BOS], unicodedata.normalize("NFC", text)
        return row_ids(words.tokenizer, *begin, words[BEGIN_IMAGE], size, words[BEGIN_TOKENS])

    def rows(self, text: str, guidance: int, device: torch.device) -> PromptRows:
        """Return the conditional row and, with guidance 2, the unconditional one."""
        rows = [self.row(prompt) for prompt in (text, self.negative)[:guidance]]
        longest = max(map(len, rows))
        starts = [longest - len(row) for row in rows]
        pad = self.words[PAD]
        # on the left, so that the images of both rows begin in the same slot
        ids = [[pad] * start + row for start, row in zip(starts, rows, strict=True)]
        return PromptRows(torch.tensor(ids, device=device), torch.tensor(starts, device=device))


class Emu3(LlamaTarget):
    """Text-to-image with an Emu3-Gen checkpoint."""

    name = "emu3"

    def __init__(self, transformer: Transformer, prompts: Emu3Prompts, images: MoVQ):
        super().__init__(transformer, prompts, images, prompts.words.image)
        self.grid = prompts.grid

    @classmethod
    def load(cls, folder: Path, options: TargetOptions) -> "Emu3":
        """Read a checkpoint folder; ValueError names what is missing, damaged or different."""
        config, spec = fitting_config(folder, emu3_spec)
        images = load_movq(folder, config, options.device)
        prompts = read_prompts(folder, spec, images, options)
        network = emu3_network(spec, prompts.words.image)
        network.fill(folder, options.dtype, options.device)
        return cls(network.module, prompts, images)

    @classmethod
    def codec(cls, folder: Path, options: TargetOptions) -> Codec:
        """Return what a checkpoint does with pictures and captions, without its transformer.

        Arguments and errors as `load`.
        """
        config = read_object(folder / "config.json")
        with naming(folder):
            spec = emu3_spec(config)
        images = load_movq(folder, config, options.device)
        prompts = read_prompts(folder, spec, images, options)
        return Codec(
            images, prompts.grid, images.config.n_embed, lambda text: len(prompts.row(text)), ADM
        )

    def length(self, text: str) -> int:
        return self.prompt(text, 2).ids.shape[1]


def image_grid(words: Emu3Vocab, downsampling: int, options: TargetOptions) -> ImageGrid:
    """Return the grid of an image of --target_size; SettingsError if it cannot be drawn."""
    width, height = parse_size(options.target_size or EMU3.default, EMU3)
    row_end = words[ROW_END] - words.image.first_id
    return ImageGrid(height // downsampling, width // downsampling, row_end)


def read_prompts(
    folder: Path, spec: TransformerSpec, images: MoVQ, options: TargetOptions
) -> Emu3Prompts:
    """Return what makes prompts.

    Raises:
        ValueError: the tokenizer lacks a token, does not fit codec or transformer, or an image
            takes more positions than there are.
    """
    words = Emu3Vocab(folder)
    vocab = words.image
    if vocab.size != images.config.n_embed or vocab.first_id + vocab.size > spec.vocab:
        raise ValueError(
            f"{words.path} names {vocab.size} image codes from id {vocab.first_id} on; the codec "
            f"has {images.config.n_embed} codes, config.json {spec.vocab} ids"
        )
    grid = image_grid(words, images.downsampling, options)
    with naming(folder):
        room = room_for_prompts(spec, grid)
    return Emu3Prompts(words, grid, room, options.negative_prompt or "")
