"""The Chameleon family in its public Hugging Face format: Anole, and ckpts/tiny with smaller sizes.

A checkpoint folder holds config.json and the transformer's weights; Meta's folder `tokenizer`,
inside it or elsewhere (models/files/chameleon_parts.py), holds text_tokenizer.json, vqgan.yaml and
the VQGAN's weights.

A sequence is `<s> text <reserved08706> <racm3:break>`, then the image's tokens.

Lumina-mGPT (arXiv 2408.02657) has Chameleon's transformer and image tokens, and images of many
sizes. An image is `<racm3:break>`, its height and its width in units of 32 pixels, then its rows of
tokens, each closed by `<reserved08799>`. The prompt holds everything up to the width; the row ends
are forced (`ImageGrid.row_end`).

Lumina-mGPT 2.0 (2507.17801) has this layout, Qwen2's words and MoVQGAN's codes. A token covers 8 x
8 pixels, so an image of 768 x 768 is 96 rows of 96 tokens and a row end. The tokenizer has no
tokens for the image codes: their ids are fixed. tokenizer_config.json names the token that prompts
begin with, and where there is no token for the end of a turn, its name is text.
"""

import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from configs.fields import settled
from configs.targets import TARGETS, ImageSizes
from models.base import ImageGrid, ImageVocab, TargetOptions, TransformerSpec
from models.codecs.codec import ADM, META
from models.codecs.vqgan import json_config
from models.codecs.vqgan_files import VqganFiles, bundled_vqgan, movqgan_files, vqgan_files
from models.files.chameleon_parts import find_text, find_vqgan
from models.files.entries import refuse_entry
from models.files.folders import checkpoint_folder
from models.files.tokenizer_file import load_tokenizer, row_ids
from models.files.weights import BUNDLED_VQGAN, HUB_TOKENIZER
from models.targets.family import Family
from models.targets.llama import decoder_spec
from models.targets.prompts import Prompts, Words
from support.json_files import read_object

BOS, PAD, END_OF_TURN, BEGIN_IMAGE = "<s>", "<pad>", "<reserved08706>", "<racm3:break>"
_IMAGE_NAME = re.compile("IMGIMG([A-J]+)Z")
_DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")  # of the codes in the names of image tokens
ROW_END = "<reserved08799>"  # of Lumina-mGPT
FIRST_CODE = 155_000  # Lumina-mGPT 2.0's id of image code 0
_CODES = 16_384  # of its published codec; config.json does not tell


class ChameleonVocab(Words):
    """Token ids of text_tokenizer.json."""

    @cached_property
    def image(self) -> ImageVocab:
        """The image ids. A name spells its code: IMGIMG, the digits as letters A to J, Z."""
        code_of = {
            id: int(match[1].translate(_DIGITS))
            for name, id in self.ids.items()
            if (match := _IMAGE_NAME.fullmatch(name))
        }
        if not code_of:
            raise ValueError(
                "text_tokenizer.json has no image tokens (IMGIMG...): it is another "
                "model's, such as Lumina-mGPT 2.0's (--model lumina_mgpt2)"
            )
        first = min(code_of)
        if any(code_of.get(first + code) != code for code in range(len(code_of))):
            raise ValueError(
                "text_tokenizer.json: the image tokens are not neighbouring ids in the order of "
                "their codes"
            )
        return ImageVocab(first, len(code_of))


class ChameleonPrompts(Prompts):
    """`<s> text <reserved08706> <racm3:break>`; the unconditional row lacks text and turn."""

    pad = PAD

    def ids(self, text: str) -> list[int]:
        words = self.words
        return row_ids(words.tokenizer, words[BOS], text, words[END_OF_TURN], words[BEGIN_IMAGE])

    def empty(self, row: list[int]) -> list[int]:
        return [self.words[BOS], self.words[BEGIN_IMAGE]]


class WithVqgan(Family):
    """A family with Chameleon's VQGAN, in Meta's files or among the checkpoint's own weights."""

    def codes(self, config: dict) -> ImageVocab:
        # Of the usual VQGAN where config.json says nothing; one in Meta's files may be smaller.
        sizes = json_config(config.get("vq_config") or {}, "config.json")
        return ImageVocab(0, min(sizes.n_embed, self.spec(config).vocab))

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        home = find_vqgan(folder, tokenizer_folder(options))
        return bundled_vqgan(folder) if home is None else vqgan_files(home)


class Chameleon(WithVqgan):
    """Chameleon and Anole."""

    name = "chameleon"
    prompts = ChameleonPrompts
    fit = META
    frame: tuple[str, ...] = (BOS, PAD, END_OF_TURN, BEGIN_IMAGE)
    ignored = (BUNDLED_VQGAN,)

    def spec(self, config: dict) -> TransformerSpec:
        return decoder_spec(config)

    def drafter(self, config: dict, target: TransformerSpec) -> TransformerSpec:
        return replace(decoder_spec(config), max_positions=target.max_positions)

    def words(self, folder: Path, options: TargetOptions) -> ChameleonVocab:
        path = find_text(folder, tokenizer_folder(options))
        return ChameleonVocab(load_tokenizer(path), path, self.frame)


def tokenizer_folder(options: TargetOptions) -> Path | None:
    """Return the folder of --tokenizer_path; None without that flag."""
    path = options.tokenizer_path
    return None if path is None else checkpoint_folder(path, "--tokenizer_path")


class LuminaPrompts(ChameleonPrompts):
    """The user's turn, the begin of the answer, the image's size; the other row begins there."""

    sizes: ImageSizes = settled(TARGETS["lumina_mgpt"].sizes)
    row_end = ROW_END

    def image_grid(self) -> ImageGrid:
        width, height = self.asked_size()
        for side in (height, width):
            if size_token(side) not in self.words.ids:
                raise ValueError(
                    f"--target_size {width}x{height}: the tokenizer has no token for a side of "
                    f"{side} pixels, {size_token(side)!r}"
                )
        return super().image_grid()

    def ids(self, text: str) -> list[int]:
        words, (width, height) = self.words, self.asked_size()
        request = f"Generate an image of {width}x{height} according to the following prompt:\n"
        tail = self.end_of_turn, *self.empty([])
        return row_ids(words.tokenizer, words[BOS], f"{request}{text}", *tail)

    @property
    def end_of_turn(self) -> int | str:
        """The token that ends the user's turn, or its text."""
        return self.words[END_OF_TURN]

    def empty(self, row: list[int]) -> list[int]:
        width, height = self.asked_size()
        names = BEGIN_IMAGE, size_token(height), size_token(width)
        return [self.words[name] for name in names]


class LuminaMgpt(Chameleon):
    """Lumina-mGPT, whose images have row ends and any size."""

    name = "lumina_mgpt"
    prompts = LuminaPrompts
    fit = ADM
    frame = (BOS, PAD, END_OF_TURN, BEGIN_IMAGE, ROW_END)


def size_token(side: int) -> str:
    """Return the name of the token of a height or width in pixels."""
    return f"<reserved{8800 + side // LuminaPrompts.sizes.cell:05d}>"


class LuminaMgpt2Words(Words):
    """Token ids of tokenizer.json, with a begin of prompts of its own."""

    def __init__(self, folder: Path):
        path, self.begin = folder / HUB_TOKENIZER, _begin(folder / "tokenizer_config.json")
        super().__init__(load_tokenizer(path), path, (self.begin, BEGIN_IMAGE, ROW_END))

    def __getitem__(self, name: str) -> int:
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
    sizes = settled(TARGETS["lumina_mgpt2"].sizes)

    @property
    def end_of_turn(self) -> int | str:
        return self.words.ids.get(END_OF_TURN, END_OF_TURN)

    def first_code(self) -> int:
        return FIRST_CODE


class LuminaMgpt2(Family):
    """Lumina-mGPT 2.0, with MoVQGAN's codes."""

    name = "lumina_mgpt2"
    prompts = LuminaMgpt2Prompts
    image_part, image_flag = "image codec", "vq_path"
    ignored = (BUNDLED_VQGAN,)

    def spec(self, config: dict) -> TransformerSpec:
        spec = decoder_spec(config)
        if spec.vocab <= FIRST_CODE:
            expected = f"more than {FIRST_CODE}, the id of --model {self.name}'s first image code"
            refuse_entry("vocab_size", spec.vocab, expected)
        return spec

    def drafter(self, config: dict, target: TransformerSpec) -> TransformerSpec:
        return replace(decoder_spec(config), max_positions=target.max_positions)

    def codes(self, config: dict) -> ImageVocab:
        return ImageVocab(FIRST_CODE, min(_CODES, self.spec(config).vocab - FIRST_CODE))

    def words(self, folder: Path, options: TargetOptions) -> LuminaMgpt2Words:
        return LuminaMgpt2Words(folder)

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        return movqgan_files(Path(settled(options.vq_path)))
