"""Janus-Pro (arXiv 2501.17811): a plain Llama whose image codes have an embedding of their own.

A prompt is `<begin of sentence><|User|>: text`, a blank line, `<|Assistant|>:<begin_of_image>`. The
unconditional row is as long: all but its first and last token are padding, which is attended to. An
image is 24 x 24 tokens without row ends.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer

from models.base import ImageGrid, PromptRows, TargetOptions, TransformerSpec
from models.codecs.codec import ADM, Codec
from models.codecs.janus_vq import load_janus_vq
from models.codecs.vqgan import ImageTokenizer
from models.files.names import HUB_TOKENIZER
from models.files.sizes import fitting_config
from models.files.tokenizer_file import load_tokenizer, require_tokens, row_ids
from models.files.weights import naming
from models.targets.janus_config import janus_config
from models.targets.janus_network import JanusNetwork, janus_network, janus_spec
from models.targets.llama_target import LlamaTarget
from models.targets.room import refuse_long
from support.json_files import read_object

BOS, PAD, BEGIN_IMAGE = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"
FRAME = (BOS, PAD, BEGIN_IMAGE)  # the tokens around a prompt's text


class JanusPrompts:
    """The prompt rows of a text, and whether an image still finds room after them."""

    def __init__(self, tokenizer: Tokenizer, positions: int, image: int):
        """positions: of the transformer; image: tokens of an image."""
        self.tokenizer, self.room = tokenizer, positions - image

    @property
    def shortest(self) -> int:
        """Tokens of a prompt without text."""
        return len(self._ids(""))

    def row(self, text: str) -> list[int]:
        """Return the ids of the conditional row; ValueError if the text is too long."""
        return refuse_long(self._ids(text), self.room, text)

    def _ids(self, text: str) -> list[int]:
        id_of = self.tokenizer.token_to_id
        # The roles are tokens in the published files; a file without them spells them.
        user, assistant = (
            role if id_of(role) is None else id_of(role) for role in ("<|User|>", "<|Assistant|>")
        )
        request = user, f": {text.strip()}\n\n", assistant, ":"
        return row_ids(self.tokenizer, id_of(BOS), *request, id_of(BEGIN_IMAGE))

    def rows(self, text: str, guidance: int, device: torch.device) -> PromptRows:
        """Return the conditional row and, with guidance 2, the unconditional one."""
        row = self.row(text)
        pad = self.tokenizer.token_to_id(PAD)
        empty = [row[0], *[pad] * (len(row) - 2), row[-1]]
        ids = torch.tensor([row, empty][:guidance], device=device)
        return PromptRows(ids, torch.zeros(guidance, dtype=torch.long, device=device))

    def length(self, text: str) -> int:
        """Return the tokens of a text's prompt; ValueError if they are too many."""
        return len(self.row(text))


class JanusPro(LlamaTarget):
    """Text-to-image with a Janus-Pro checkpoint."""

    name = "janus_pro"

    def __init__(self, network: JanusNetwork, prompts: JanusPrompts, images: ImageTokenizer):
        super().__init__(network.transformer, prompts, images, network.vocab)
        self.grid = ImageGrid(*images.grid)

    @classmethod
    def load(cls, folder: Path, options: TargetOptions) -> "JanusPro":
        """Read a checkpoint folder; ValueError names what is missing, damaged or different."""
        config, spec = fitting_config(folder, janus_spec)
        images = read_images(folder, config, options.device)
        prompts = read_prompts(folder, spec, images.grid)
        network = janus_network(config)
        network.fill(folder, options.dtype, options.device)
        network.module.embed_codes()
        return cls(network.module, prompts, images)

    @classmethod
    def codec(cls, folder: Path, options: TargetOptions) -> Codec:
        """Return what a checkpoint does with pictures and captions, without its transformer.

        Arguments and errors as `load`.
        """
        config = read_object(folder / "config.json")
        with naming(folder):
            spec = janus_spec(config)
        images = read_images(folder, config, options.device)
        prompts = read_prompts(folder, spec, images.grid)
        grid = ImageGrid(*images.grid)
        return Codec(images, grid, images.config.n_embed, prompts.length, ADM)

    def length(self, text: str) -> int:
        return self.prompts.length(text)


def read_images(folder: Path, config: dict, device: torch.device) -> ImageTokenizer:
    """Return the image codec among a checkpoint's weights; ValueError if it does not fit."""
    with naming(folder):
        parsed = janus_config(config)
    images = load_janus_vq(folder, parsed.keys.codec, parsed.side, device)
    if images.config.n_embed != parsed.codes:
        raise ValueError(
            f"{folder}: the codec has {images.config.n_embed} codes, config.json {parsed.codes}"
        )
    return images


def read_prompts(folder: Path, spec: TransformerSpec, grid: tuple[int, int]) -> JanusPrompts:
    """Return what makes prompts; ValueError if the tokenizer lacks a token around them."""
    return JanusPrompts(read_words(folder), spec.max_positions, grid[0] * grid[1])


def read_words(folder: Path) -> Tokenizer:
    """Return the tokenizer; ValueError if it is missing or lacks a token around prompts."""
    path = folder / HUB_TOKENIZER
    tokenizer = load_tokenizer(path)
    require_tokens(tokenizer, FRAME, path)
    return tokenizer
