"""Liquid (arXiv 2412.04332): Gemma with the codes of Chameleon's VQGAN behind its own ids.

A sequence is `<bos>text Generate an image based on this description.<boi>`, then 32 x 32 tokens
without row ends. The unconditional row is `<bos><unconditional><boi>`. The tokenizer has no tokens
for the image codes: their ids begin where its own end.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from models.base import ImageGrid, ImageVocab, PromptRows, TargetOptions, TransformerSpec
from models.codecs.codec import META, Codec
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_config import VqganConfig
from models.files.chameleon_parts import find_vqgan
from models.files.folders import given_folder
from models.files.names import HUB_TOKENIZER
from models.files.sizes import fitting_config
from models.files.tokenizer_file import load_tokenizer, require_tokens, row_ids
from models.files.weights import naming
from models.targets.chameleon import load_images
from models.targets.liquid_network import enter_constants, liquid_network, liquid_spec
from models.targets.llama_target import LlamaTarget
from models.targets.room import refuse_long, room_for_prompts
from models.transformer import Transformer
from support.json_files import read_object

BOS, PAD, BEGIN_IMAGE, UNCONDITIONAL = "<bos>", "<pad>", "<boi>", "<unconditional>"
FRAME = (BOS, PAD, BEGIN_IMAGE, UNCONDITIONAL)  # the tokens around a prompt's text
REQUEST = " Generate an image based on this description."


@dataclass(frozen=True)
class LiquidPrompts:
    """The prompt rows of a text.

    grid: of the image. vocab: ids of the image codes. room: tokens that a prompt may have.
    """

    tokenizer: Tokenizer
    grid: ImageGrid
    vocab: ImageVocab
    room: int

    @property
    def shortest(self) -> int:
        """Tokens of a prompt without text."""
        return len(self._ids(""))

    def row(self, text: str) -> list[int]:
        """Return the ids of the conditional row; ValueError if the text is too long."""
        return refuse_long(self._ids(text), self.room, text)

    def length(self, text: str) -> int:
        """Return the tokens of a text's prompt; ValueError if they are too many."""
        return len(self.row(text))

    def _ids(self, text: str) -> list[int]:
        id_of = self.tokenizer.token_to_id
        return row_ids(self.tokenizer, id_of(BOS), text + REQUEST, id_of(BEGIN_IMAGE))

    def rows(self, text: str, guidance: int, device: torch.device) -> PromptRows:
        """Return the conditional row and, with guidance 2, the unconditional one."""
        row = self.row(text)
        pad, *empty = map(self.tokenizer.token_to_id, (PAD, BOS, UNCONDITIONAL, BEGIN_IMAGE))
        padding = len(row) - len(empty)  # on the left, so that both images begin in the same slot
        ids = [row, [pad] * padding + empty][:guidance]
        starts = [0, padding][:guidance]
        return PromptRows(torch.tensor(ids, device=device), torch.tensor(starts, device=device))


class Liquid(LlamaTarget):
    """Text-to-image with a Liquid checkpoint."""

    name = "liquid"

    def __init__(self, transformer: Transformer, prompts: LiquidPrompts, images: ImageTokenizer):
        super().__init__(transformer, prompts, images, prompts.vocab)
        self.grid = prompts.grid

    @classmethod
    def load(cls, folder: Path, options: TargetOptions) -> "Liquid":
        """Read a checkpoint folder; ValueError names what is missing, damaged or different."""
        _, spec = fitting_config(folder, liquid_spec)
        images = read_images(folder, options)
        prompts = read_prompts(folder, spec, images.config)
        network = liquid_network(spec, prompts.vocab.size)
        network.fill(folder, options.dtype, options.device)
        enter_constants(network.module, prompts.vocab)
        return cls(network.module, prompts, images)

    @classmethod
    def codec(cls, folder: Path, options: TargetOptions) -> Codec:
        """Return what a checkpoint does with pictures and captions, without its transformer.

        Arguments and errors as `load`.
        """
        with naming(folder):
            spec = liquid_spec(read_object(folder / "config.json"))
        images = read_images(folder, options)
        prompts = read_prompts(folder, spec, images.config)
        return Codec(images, prompts.grid, prompts.vocab.size, prompts.length, META)

    def length(self, text: str) -> int:
        return self.prompts.length(text)


def read_images(folder: Path, options: TargetOptions) -> ImageTokenizer:
    """Return Chameleon's VQGAN from where a checkpoint's tokenizers are; errors as `find_vqgan`."""
    home = find_vqgan(folder, given_folder(options.tokenizer_path, "--tokenizer_path"))
    return load_images(folder, home, options.device)


def read_words(folder: Path) -> Tokenizer:
    """Return the tokenizer; ValueError if it is missing or lacks a token around prompts."""
    path = folder / HUB_TOKENIZER
    tokenizer = load_tokenizer(path)
    require_tokens(tokenizer, FRAME, path)
    return tokenizer


def read_prompts(folder: Path, spec: TransformerSpec, vqgan: VqganConfig) -> LiquidPrompts:
    """Return what makes prompts.

    Raises:
        ValueError: the tokenizer lacks a token, the transformer has too few ids for the codes, or
            an image takes more positions than there are.
    """
    tokenizer = read_words(folder)
    vocab = ImageVocab(tokenizer.get_vocab_size(), vqgan.n_embed)
    if vocab.first_id + vocab.size > spec.vocab:
        raise ValueError(
            f"{folder / HUB_TOKENIZER} has {vocab.first_id} ids, the VQGAN {vocab.size} codes; "
            f"config.json has {spec.vocab} ids, too few for both"
        )
    grid = ImageGrid(*vqgan.grid)
    with naming(folder):
        room = room_for_prompts(spec, grid)
    return LiquidPrompts(tokenizer, grid, vocab, room)
