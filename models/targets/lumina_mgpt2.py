"""Lumina-mGPT 2.0 (arXiv 2507.17801): the layout of Lumina-mGPT, Qwen2's words, MoVQGAN's codes.

A token covers 8 x 8 pixels, so an image of 768 x 768 is 96 rows of 96 tokens and a row end. The
tokenizer has no tokens for the image codes: their ids are fixed. tokenizer_config.json names the
token that prompts begin with, and where there is no token for the end of a turn, its name is text.
"""

from pathlib import Path

from configs.targets import TARGETS
from models.base import ImageVocab, TargetOptions, TransformerSpec
from models.codecs.vqgan_files import VqganFiles, movqgan_files
from models.files.entries import refuse_entry
from models.files.names import BUNDLED_VQGAN, HUB_TOKENIZER
from models.files.network import Network
from models.files.tokenizer_file import load_tokenizer
from models.targets.chameleon import BEGIN_IMAGE, BOS, END_OF_TURN, Chameleon
from models.targets.family import Family
from models.targets.llama import decoder_keys, decoder_network, decoder_spec
from models.targets.llamagen import given_path
from models.targets.lumina_mgpt import ROW_END, LuminaPrompts
from models.targets.prompts import Words
from support.json_files import read_object

FIRST_CODE = 155_000  # id of image code 0
_CODES = 16_384  # of the published codec; config.json does not tell


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
