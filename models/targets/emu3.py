"""Emu3-Gen (arXiv 2409.18869): Llama with image tokens of 32,768 codes, in rows with ends.

A sequence is `<|extra_203|>text<|image start|>90*90<|image token|>`, then 90 rows of 90 tokens,
each closed by `<|extra_200|>`. The image's height and width in tokens are given as text. The
unconditional row holds a negative prompt in the text's place; rows end at the same slot and each
counts its positions from its own first token.

Keys have two layouts: transformers' of today (`model.text_model.*`), and that of the public files
(`text_model.model.*`, BAAI/Emu3-Gen-hf).

Emu3.5-Image (arXiv 2510.26583) is Emu3 with norms on queries and keys, and 131,072 image codes.
A sequence is `<|extra_203|>You are a helpful assistant for t2i task. USER: text ASSISTANT:
<|extra_100|><|image start|>64*64<|image token|>`, then 64 rows of 64 tokens, with
`<|extra_200|>` between rows. The unconditional row has no task and no text. The authors let the
model write a plan before the image, or none, as it likes; here the image begins at once, in the
size that was asked for.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from PIL import Image
from tokenizers import Tokenizer

from configs.downloads import failed_download
from configs.fields import refusing
from configs.targets import ROOT, TARGETS
from models.base import ImageVocab, TargetOptions, TransformerSpec
from models.codecs.codec import Fit
from models.codecs.movq import movq_files, movq_sizes
from models.codecs.vqgan_files import IBQ_FILES, VqganFiles, ibq_files
from models.files.entries import filled
from models.files.recognition import require_model
from models.files.tensors import Rules
from models.files.tokenizer_file import read_ranks, row_ids, tokenizer_of
from models.files.weights import all_of
from models.targets.family import Family
from models.targets.llama import llama_spec
from models.targets.prompts import Prompts, Words
from support.json_files import read_object

BOS, PAD, ROW_END = "<|extra_203|>", "<|endoftext|>", "<|extra_200|>"
BEGIN_IMAGE, BEGIN_TOKENS = "<|image start|>", "<|image token|>"
FRAME = (BOS, PAD, ROW_END, BEGIN_IMAGE, BEGIN_TOKENS)
DECODER = "model.text_model."
_IMAGE = "<|visual token {code:06d}|>"
RANKS, _VISION = "emu3.tiktoken", "emu3_vision_tokens.txt"  # the authors' files
_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# keys of the public files -> today's
_OLDER = (
    (r"^text_model\.lm_head\.", "lm_head."),
    (r"^text_model\.model\.", DECODER),
    (r"^vqmodel\.", "model.vqmodel."),
)
# transformers' Emu3TextConfig; a config.json need not repeat them
_DEFAULTS = {
    "vocab_size": 184622,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 9216,
    "rms_norm_eps": 1e-5,
}
_THETA = 1e6
# of Emu3.5
_ANSWER = "<|extra_100|>"
_DEFAULTS_3_5 = {"head_dim": 128, "eoi_token_id": 151853}  # the authors'
# Of the largest image, and 2,000 for a prompt. Caches have room for all positions, and the 32,768
# that the model was trained on would take five times the memory.
_POSITIONS = 6272
# where the authors' repository and hub keep the other parts
_CODEC, _WORDS = "Emu3.5-VisionTokenizer", "tokenizer_emu3_ibq"


class Emu3Vocab(Words):
    """Token ids by name; the names of image tokens spell their codes."""

    @cached_property
    def image(self) -> ImageVocab:
        """The image ids: neighbours, in the order of their codes."""
        first, size = self[_IMAGE.format(code=0)], 1
        while self.ids.get(_IMAGE.format(code=size)) == first + size:
            size += 1
        return ImageVocab(first, size)


def _authors_tokenizer(folder: Path) -> Tokenizer:
    """Return Emu3.5's tokenizer; ValueError names a file that cannot be used."""
    ranks, vision = all_of(
        lambda: read_ranks(folder / RANKS), lambda: _read_names(folder / _VISION)
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


class Emu3Prompts(Prompts):
    """Prompts of Emu3, which name the image's size in tokens."""

    pad, row_end = PAD, ROW_END
    sizes = TARGETS["emu3"].sizes

    def ids(self, text: str) -> list[int]:
        return self.framed(self.words[BOS], unicodedata.normalize("NFC", text))

    def framed(self, *begin: str | int) -> list[int]:
        """Return the ids of texts and control tokens, and of the image's size after them."""
        words, size = self.words, f"{self.grid.rows}*{self.grid.columns}"
        return row_ids(words.tokenizer, *begin, words[BEGIN_IMAGE], size, words[BEGIN_TOKENS])

    @property
    def shortest(self) -> int:
        # not by `empty`, which raises an error where there is no room
        return max(len(self.ids(text)) for text in ("", self.options.negative_prompt or ""))

    def empty(self, row: list[int]) -> list[int]:
        return self.row(self.options.negative_prompt or "")


class Emu3(Family):
    """Emu3-Gen, with its authors' names of weights or transformers'."""

    name = "emu3"
    prompts = Emu3Prompts
    vocabulary, frame = Emu3Vocab, FRAME
    image_part = "image codec"
    decoder = DECODER
    ignored: tuple[str, ...] = ("model.vqmodel.",)
    renames: Rules = _OLDER

    def entries(self, config: dict) -> dict:
        require_model(config, self.name)
        entries = filled(self.section(config), _DEFAULTS)
        rope = entries.get("rope_parameters")
        theta = rope.get("rope_theta") if isinstance(rope, dict) else None
        return {"rope_theta": theta or _THETA} | entries

    def section(self, config: dict) -> object:
        """Return what config.json says of the decoder."""
        return config.get("text_config")

    def spec(self, config: dict) -> TransformerSpec:
        return llama_spec(self.entries(config))

    def codes(self, config: dict) -> ImageVocab:
        # which ids are codes is in the tokenizer; the last ones fit as well
        count = movq_sizes(config.get("vq_config")).n_embed
        return ImageVocab(max(0, self.spec(config).vocab - count), count)

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        config = read_object(folder / "config.json")
        with refusing(str(folder)):
            self.entries(config)  # of this family
        return movq_files(folder, config)


class Emu35Prompts(Emu3Prompts):
    """Prompts of Emu3.5, which are a user's request."""

    sizes = TARGETS["emu3_5"].sizes

    def ids(self, text: str) -> list[int]:
        return self._asked(f" for t2i task. USER: {text}")

    def empty(self, row: list[int]) -> list[int]:
        return self._asked(". USER: ")

    def _asked(self, request: str) -> list[int]:
        text = unicodedata.normalize("NFC", f"You are a helpful assistant{request} ASSISTANT: ")
        return self.framed(self.words[BOS], text, self.words[_ANSWER])


class Emu35(Emu3):
    """Emu3.5-Image, a Qwen3 with codes of its own tokenizer."""

    name = "emu3_5"
    prompts = Emu35Prompts
    decoder, ignored, renames = Family.decoder, Family.ignored, Family.renames
    fit = Fit(Image.Resampling.BICUBIC, halves=False)

    def entries(self, config: dict) -> dict:
        entries = super().entries(config)
        return {name: value for name, value in entries.items() if name != "head_dim"}

    def section(self, config: dict) -> object:
        return config

    def spec(self, config: dict) -> TransformerSpec:
        width = filled(config, _DEFAULTS_3_5)["head_dim"]
        return replace(llama_spec(self.entries(config), width, _POSITIONS), qk_rms=True)

    def codes(self, config: dict) -> ImageVocab:
        # image codes follow the token `<|image end|>`
        ids, end = self.spec(config).vocab, filled(config, _DEFAULTS_3_5)["eoi_token_id"]
        first = end + 1 if type(end) is int and 0 <= end < ids - 1 else 0
        return ImageVocab(first, ids - first)

    def words(self, folder: Path, options: TargetOptions) -> Emu3Vocab:
        source = f"it is in src/{_WORDS} of github.com/baaivision/Emu3.5"
        home = _folder_with([RANKS], [folder, *_beside(folder, _WORDS)], source)
        return Emu3Vocab(_authors_tokenizer(home), home / RANKS, FRAME)

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        folders = _beside(folder, _CODEC)
        source = f"`hf download BAAI/{_CODEC} --local-dir {folders[0]}` brings them"
        return ibq_files(_folder_with(IBQ_FILES, folders, source))


def _beside(folder: Path, name: str) -> list[Path]:
    """Return where a part is looked for: next to the checkpoint, or to where it is by default."""
    homes = folder.absolute().parent, (ROOT / TARGETS["emu3_5"].folder).parent
    return [home / name for home in dict.fromkeys(homes)]


def _folder_with(names: Sequence[str], folders: Sequence[Path], source: str) -> Path:
    """Return the first of the folders that has all files; the ValueError tells their source."""
    for folder in folders:
        if all((folder / name).is_file() for name in names):
            return folder
    where = " or ".join(map(str, folders))
    raise ValueError(f"found no {' and '.join(names)} in {where}; {source}")
