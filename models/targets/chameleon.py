"""The Chameleon family in its public Hugging Face format: Anole, and ckpts/tiny with smaller sizes.

A checkpoint folder holds config.json and the transformer's weights; Meta's folder `tokenizer`,
inside it or elsewhere (models/files/chameleon_parts.py), holds text_tokenizer.json, vqgan.yaml and
the VQGAN's weights.
"""

from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from tokenizers import Tokenizer

from models.base import ImageGrid, ImageVocab, PromptRows, TargetOptions, TransformerSpec
from models.codecs.codec import META, Codec
from models.codecs.vqgan import ImageTokenizer, load_bundled_vqgan, load_vqgan
from models.codecs.vqgan_config import VqganConfig
from models.files.chameleon_parts import TokenizerFiles, find_tokenizer
from models.files.folders import given_folder
from models.files.sizes import fitting_config
from models.files.tokenizer_file import load_tokenizer, row_ids
from models.files.weights import naming
from models.targets.chameleon_network import chameleon_network, chameleon_spec, drafter_spec
from models.targets.room import refuse_long, room_for_prompts
from models.targets.transformer_target import TransformerTarget
from models.transformer import Transformer
from support.json_files import read_object

BOS, PAD, END_OF_TURN, BEGIN_IMAGE = "<s>", "<pad>", "<reserved08706>", "<racm3:break>"
FRAME = (BOS, PAD, END_OF_TURN, BEGIN_IMAGE)  # the tokens around a prompt's text
_IMAGE_PREFIX = "IMGIMG"


class ChameleonVocab:
    """Token ids by name, from the tokenizer file; no id is written in code."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.ids = tokenizer.get_vocab()

    def __getitem__(self, name: str) -> int:
        if name not in self.ids:
            raise ValueError(f"text_tokenizer.json has no token {name!r}")
        return self.ids[name]

    @cached_property
    def image(self) -> ImageVocab:
        """The image ids. A name spells its code: IMGIMG, the digits as letters A to J, Z."""
        code_of = {
            self.ids[name]: int(
                "".join(str(ord(letter) - ord("A")) for letter in name[len(_IMAGE_PREFIX) : -1])
            )
            for name in self.ids
            if name.startswith(_IMAGE_PREFIX)
        }
        if not code_of:
            raise ValueError(
                f"text_tokenizer.json has no image tokens ({_IMAGE_PREFIX}...): it is another "
                "model's, such as Lumina-mGPT 2.0's, which no --model here reads"
            )
        first = min(code_of)
        if any(code_of.get(first + code) != code for code in range(len(code_of))):
            raise ValueError(
                "text_tokenizer.json: the image tokens are not neighbouring ids in the order of "
                "their codes"
            )
        return ImageVocab(first, len(code_of))


class Chameleon(TransformerTarget):
    """Text-to-image with a Chameleon transformer.

    A sequence is `<s> text <reserved08706> <racm3:break>`, then the image's tokens.
    """

    name = "chameleon"
    fit = META

    def __init__(
        self,
        transformer: Transformer,
        vocab: ChameleonVocab,
        images: ImageTokenizer,
        grid: ImageGrid,
    ):
        self.transformer, self.words, self.images, self.grid = transformer, vocab, images, grid
        self.spec, self.vocab = transformer.spec, vocab.image
        self.dtype, self.device = transformer.norm.weight.dtype, transformer.norm.weight.device

    @classmethod
    def load(cls, folder: Path, options: TargetOptions) -> "Chameleon":
        """Read a checkpoint folder; ValueError names what is missing, damaged or different."""
        _, spec = fitting_config(folder, chameleon_spec)
        words, images, grid = cls._parts(folder, spec, options)
        network = chameleon_network(spec, words.image)
        network.fill(folder, options.dtype, options.device)
        return cls(network.module, words, images, grid)

    @classmethod
    def codec(cls, folder: Path, options: TargetOptions) -> Codec:
        """Return what a checkpoint does with pictures and captions, without its transformer.

        Arguments and errors as `load`.
        """
        with naming(folder):
            spec = chameleon_spec(read_object(folder / "config.json"))
        words, images, grid = cls._parts(folder, spec, options)
        blank = chameleon_network(replace(spec, layers=0), words.image)  # counting reads sizes only
        target = cls(blank.module, words, images, grid)
        return Codec(target.images, target.grid, target.vocab.size, target.length, cls.fit)

    @classmethod
    def _parts(
        cls, folder: Path, spec: TransformerSpec, options: TargetOptions
    ) -> tuple[ChameleonVocab, ImageTokenizer, ImageGrid]:
        """Return all parts next to the transformer, whose weights are not read."""
        files = find_tokenizer(folder, given_folder(options.tokenizer_path, "--tokenizer_path"))
        words = ChameleonVocab(load_tokenizer(files.text))
        images = load_images(folder, files.vqgan, options.device)
        with naming(folder):
            grid = cls.check_parts(files, words, images.config, spec, options)
        return words, images, grid

    @classmethod
    def check_parts(
        cls,
        files: TokenizerFiles,
        words: "ChameleonVocab",
        vqgan: VqganConfig,
        spec: TransformerSpec,
        options: TargetOptions,
    ) -> ImageGrid:
        """Return the grid of the image tokens.

        Raises:
            ValueError: if text tokenizer, VQGAN and transformer do not fit together, or the
                transformer has too few positions for an image.
        """
        highest = max(words.ids.values())
        if vqgan.n_embed != words.image.size or highest >= spec.vocab:
            raise ValueError(
                f"{files.text} names {words.image.size} image codes and ids up to {highest}; "
                f"the VQGAN has {vqgan.n_embed} codes, config.json {spec.vocab} ids"
            )
        grid = cls.image_grid(vqgan, words, options)
        room_for_prompts(spec, grid)
        return grid

    @classmethod
    def shortest_prompt(cls, words: ChameleonVocab, grid: ImageGrid, cell: int) -> int:
        """Return the tokens of a prompt without text; cell: pixels of a token's side."""
        return len((BOS, END_OF_TURN, BEGIN_IMAGE))

    @classmethod
    def image_grid(
        cls, vqgan: VqganConfig, words: ChameleonVocab, options: TargetOptions
    ) -> ImageGrid:
        """Return the grid of the image tokens; ValueError if the model cannot draw that size."""
        return ImageGrid(*vqgan.grid)

    def prompt(self, text: str, guidance: int) -> PromptRows:
        words = self.words
        tail, empty = [words[END_OF_TURN], words[BEGIN_IMAGE]], [words[BOS], words[BEGIN_IMAGE]]
        return self.framed(text, tail, empty, guidance)

    def framed(self, text: str, tail: list[int], empty: list[int], guidance: int) -> PromptRows:
        """Return `<s> text tail` and, with guidance 2, the shorter row `empty`, padded on the left.

        Raises:
            ValueError: if the prompt leaves too few positions for the image.
        """
        row = row_ids(self.words.tokenizer, self.words[BOS], text, *tail)
        refuse_long(row, room_for_prompts(self.spec, self.grid), text)
        padding = len(row) - len(empty)
        rows = [row, [self.words[PAD]] * padding + empty][:guidance]
        starts = [0, padding][:guidance]
        return PromptRows(
            torch.tensor(rows, device=self.device), torch.tensor(starts, device=self.device)
        )

    def drafter_spec(self, config: dict) -> TransformerSpec:
        return drafter_spec(config, self.spec)


def load_images(folder: Path, home: Path | None, device: torch.device) -> ImageTokenizer:
    """Return the VQGAN in Meta's folder `home`, or among the checkpoint's own weights if None."""
    if home is None:
        return load_bundled_vqgan(folder, str(device))
    return load_vqgan(home, device=str(device))
