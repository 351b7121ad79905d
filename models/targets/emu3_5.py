"""Emu3.5-Image (arXiv 2510.26583): Emu3 with norms on queries and keys, and 131,072 image codes.

A sequence is `<|extra_203|>You are a helpful assistant for t2i task. USER: text ASSISTANT:
<|extra_100|><|image start|>64*64<|image token|>`, then 64 rows of 64 tokens, with
`<|extra_200|>` between rows. The unconditional row has no task and no text. The authors let the
model write a plan before the image, or none, as it likes; here the image begins at once, in the
size that was asked for.
"""

import unicodedata
from dataclasses import replace
from pathlib import Path

from PIL import Image

from configs.targets import ROOT, TARGETS
from models.base import ImageVocab, TargetOptions, TransformerSpec
from models.codecs.codec import Fit
from models.codecs.vqgan_files import IBQ_FILES, VqganFiles, ibq_files
from models.files.entries import filled
from models.files.names import HUB_TOKENIZER
from models.files.network import Network
from models.targets.emu3 import BOS, RANKS, Emu3, Emu3Prompts, Emu3Vocab
from models.targets.llama import decoder_keys, decoder_network, wide_llama_spec

_ANSWER = "<|extra_100|>"
_DEFAULTS = {"head_dim": 128, "eoi_token_id": 151853}  # the authors'
# Of the largest image, and 2,000 for a prompt. Caches have room for all positions, and the 32,768
# that the model was trained on would take five times the memory.
_POSITIONS = 6272
# where the authors' repository and hub keep the other parts
_CODEC, _WORDS = "Emu3.5-VisionTokenizer", "tokenizer_emu3_ibq"


class Emu35Prompts(Emu3Prompts):
    """The authors' request for a picture; the other row: the same without a task and a text."""

    sizes = TARGETS["emu3_5"].sizes

    def ids(self, text: str) -> list[int]:
        return self._asked(f" for t2i task. USER: {text}")

    def empty(self, row: list[int]) -> list[int]:
        return self._asked(". USER: ")

    def _asked(self, request: str) -> list[int]:
        text = unicodedata.normalize("NFC", f"You are a helpful assistant{request} ASSISTANT: ")
        return self.framed(self.words[BOS], text, self.words[_ANSWER])


class Emu35(Emu3):
    """Text-to-image with an Emu3.5 or Emu3.5-Image checkpoint."""

    name = "emu3_5"
    prompts = Emu35Prompts
    fit = Fit(Image.Resampling.BICUBIC, halves=False)

    def entries(self, config: dict) -> dict:
        """Return what a drafter takes over: a layer of Llama, heads of hidden / heads channels."""
        entries = super().entries(config)
        return {name: value for name, value in entries.items() if name != "head_dim"}

    def spec(self, config: dict) -> TransformerSpec:
        width = filled(config, _DEFAULTS)["head_dim"]
        return replace(wide_llama_spec(self.entries(config), width, _POSITIONS), qk_rms=True)

    def network(self, config: dict, vocab: ImageVocab | None = None) -> Network:
        spec = self.spec(config)
        if vocab is None:  # image codes follow the token `<|image end|>`
            end = filled(config, _DEFAULTS)["eoi_token_id"]
            first = end + 1 if type(end) is int and 0 <= end < spec.vocab - 1 else 0
            vocab = ImageVocab(first, spec.vocab - first)
        return decoder_network(spec, vocab, decoder_keys(spec, vocab))

    def words(self, folder: Path, options: TargetOptions) -> Emu3Vocab:
        places = [folder, *_places(folder, _WORDS)]
        for place in places:
            if any((place / name).is_file() for name in (HUB_TOKENIZER, RANKS)):
                return Emu3Vocab(place)
        raise ValueError(
            f"found no {RANKS} in {' or '.join(map(str, places))}; it is in src/{_WORDS} of "
            "github.com/baaivision/Emu3.5"
        )

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        places = _places(folder, _CODEC)
        for home in places:
            if all((home / name).is_file() for name in IBQ_FILES):
                return ibq_files(home)
        raise ValueError(
            f"found no {' and '.join(IBQ_FILES)} in {' or '.join(map(str, places))}; "
            f"`hf download BAAI/{_CODEC} --local-dir {places[0]}` brings them"
        )


def _places(folder: Path, name: str) -> list[Path]:
    """Return where a part is looked for: next to the checkpoint, or to where it is by default."""
    homes = folder.absolute().parent, (ROOT / TARGETS["emu3_5"].folder).parent
    return [home / name for home in dict.fromkeys(homes)]
