"""The Chameleon family in its public Hugging Face format: Anole, and ckpts/tiny with smaller sizes.

A checkpoint folder holds config.json and the transformer's weights; Meta's folder `tokenizer`,
inside it or elsewhere (models/files/chameleon_parts.py), holds text_tokenizer.json, vqgan.yaml and
the VQGAN's weights.

A sequence is `<s> text <reserved08706> <racm3:break>`, then the image's tokens.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from models.base import ImageVocab, TargetOptions, TransformerSpec
from models.codecs.codec import META
from models.codecs.vqgan_config import json_config
from models.codecs.vqgan_files import VqganFiles, bundled_vqgan, vqgan_files
from models.files.chameleon_parts import find_text, find_vqgan
from models.files.folders import checkpoint_folder
from models.files.names import BUNDLED_VQGAN, TEXT_TOKENIZER
from models.files.network import Network
from models.files.tokenizer_file import load_tokenizer, row_ids
from models.targets.family import Family
from models.targets.llama import decoder_keys, decoder_network, decoder_spec
from models.targets.prompts import Prompts, Words

BOS, PAD, END_OF_TURN, BEGIN_IMAGE = "<s>", "<pad>", "<reserved08706>", "<racm3:break>"
_IMAGE_PREFIX = "IMGIMG"


class ChameleonVocab(Words):
    """Token ids of text_tokenizer.json."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        path: Path = Path(TEXT_TOKENIZER),
        frame: Iterable[str] = (),
    ):
        super().__init__(tokenizer, path, frame)
        self.ids = tokenizer.get_vocab()

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

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        home = find_vqgan(folder, tokenizer_folder(options))
        return bundled_vqgan(folder) if home is None else vqgan_files(home)


class Chameleon(WithVqgan):
    """Text-to-image with a Chameleon transformer."""

    name = "chameleon"
    prompts = ChameleonPrompts
    fit = META
    frame = (BOS, PAD, END_OF_TURN, BEGIN_IMAGE)

    def spec(self, config: dict) -> TransformerSpec:
        return decoder_spec(config)

    def network(self, config: dict, vocab: ImageVocab | None = None) -> Network:
        spec, vocab = decoder_spec(config), vocab or ImageVocab(0, vqgan_codes(config))
        return decoder_network(spec, vocab, decoder_keys(spec, vocab), ignored=(BUNDLED_VQGAN,))

    def drafter(self, config: dict, target: TransformerSpec) -> TransformerSpec:
        return replace(decoder_spec(config), max_positions=target.max_positions)

    def words(self, folder: Path, options: TargetOptions) -> ChameleonVocab:
        path = find_text(folder, tokenizer_folder(options))
        return ChameleonVocab(load_tokenizer(path), path, self.frame)


def tokenizer_folder(options: TargetOptions) -> Path | None:
    """Return the folder of --tokenizer_path, None if it is not given."""
    path = options.tokenizer_path
    return None if path is None else checkpoint_folder(path, "--tokenizer_path", options.download)


def vqgan_codes(config: dict) -> int:
    """Return the codes of a config.json's VQGAN: of the usual one where it says nothing."""
    return json_config({"vq_config": {}} | config, "config.json").n_embed
