"""Janus-Pro (arXiv 2501.17811), models trained from it, and its forerunner Janus-1.3B
(2410.13848): a plain Llama whose image codes have an embedding of their own.

A prompt is `<begin of sentence><|User|>: text`, a blank line, `<|Assistant|>:<begin_of_image>`. The
unconditional row is as long: all but its first and last token are padding, which is attended to. An
image is 24 x 24 tokens without row ends.

The vectors of the image codes pass two layers to the decoder's width. Both are frozen, so that is
done once, after reading: one embedding has the rows of the text's ids, then those of the codes.
"""

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import ImageVocab, TargetOptions, TransformerSpec
from models.codecs.vqgan_files import VqganFiles, janus_vq
from models.files.network import KeyMap, Network, Slot
from models.files.tokenizer_file import row_ids
from models.files.weights import naming
from models.linear import Linear
from models.targets.family import Family
from models.targets.janus_config import JanusConfig, Keys, janus_config
from models.targets.llama import HEAD, decoder_keys, llama_spec
from models.targets.prompts import Prompts
from models.transformer import Transformer
from support.json_files import read_object

BOS, PAD, BEGIN_IMAGE = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"
ROLES = "User", "Assistant"
# Caches have room for all positions; the 16,384 of the public files are not for one image.
_PROMPT = 1024  # tokens of a prompt that find room


class JanusPrompts(Prompts):
    """The conditional row, and one as long with padding in place of all between its ends."""

    pad = PAD

    def image_vocab(self, spec: TransformerSpec) -> ImageVocab:
        first = spec.vocab - self.codes.count
        highest = max(self.words.tokenizer.get_vocab().values())
        if highest >= first:
            path = self.words.path
            raise ValueError(f"{path} names ids up to {highest}; config.json has {first} ids")
        return ImageVocab(first, self.codes.count)

    def ids(self, text: str) -> list[int]:
        words, id_of = self.words, self.words.tokenizer.token_to_id
        # Janus-Pro's roles are tokens; Janus-1.3B, whose file lacks them, was trained with words
        user, assistant = (
            name if id_of(f"<|{name}|>") is None else id_of(f"<|{name}|>") for name in ROLES
        )
        request = user, f": {text.strip()}\n\n", assistant, ":"
        return row_ids(words.tokenizer, words[BOS], *request, words[BEGIN_IMAGE])

    def empty(self, row: list[int]) -> list[int]:
        return [row[0], *[self.words[PAD]] * (len(row) - 2), row[-1]]


class TwoLayers(nn.Module):
    """Linear, GELU, Linear, with biases."""

    def __init__(self, width: int, inner: int, out: int):
        super().__init__()
        self.inner, self.outer = Linear(width, inner), Linear(inner, out)

    def forward(self, x: Tensor) -> Tensor:  # (..., width) -> (..., out)
        return self.outer(F.gelu(self.inner(x)))


class JanusNetwork(nn.Module):
    """The networks in a checkpoint folder that generate images. vocab: ids of the image codes."""

    def __init__(self, spec: TransformerSpec, config: JanusConfig):
        super().__init__()
        self.vocab = ImageVocab(spec.vocab - config.codes, config.codes)
        self.transformer = Transformer(spec, config.codes)
        self.transformer.head = TwoLayers(spec.hidden, config.inner, config.codes)
        self.codes = nn.Embedding(config.codes, config.width)
        self.aligner = TwoLayers(config.width, spec.hidden, spec.hidden)

    @property
    def spec(self) -> TransformerSpec:
        return self.transformer.spec

    @torch.no_grad()
    def embed_codes(self) -> None:
        """Enter the image codes into the transformer's embedding, once the weights are read."""
        rows = self.transformer.embedding.weight[self.vocab.first_id :]
        rows.copy_(self.aligner(self.codes.weight))


def janus_keys(spec: TransformerSpec, text: int, public: Keys) -> KeyMap:
    """Return public keys -> parameters of `JanusNetwork`; text: number of the text's ids."""
    keys = decoder_keys(spec, None, public.decoder, "transformer.")
    del keys[HEAD]  # of the text
    words = Slot("transformer.embedding.weight", rows=slice(0, text))
    keys |= {f"{public.decoder}embed_tokens.weight": words, public.codes: Slot("codes.weight")}
    for theirs, ours in (
        (public.inner, "aligner.inner"),
        (public.outer, "aligner.outer"),
        (public.score, "transformer.head.inner"),
        (public.head, "transformer.head.outer"),
    ):
        keys |= {f"{theirs}{name}": Slot(f"{ours}.{name}") for name in ("weight", "bias")}
    return keys


class JanusPro(Family):
    """Text-to-image with a Janus-Pro checkpoint."""

    name = "janus_pro"
    prompts = JanusPrompts
    image_part = "image codec"
    frame = (BOS, PAD, BEGIN_IMAGE)

    def spec(self, config: dict) -> TransformerSpec:
        """Return the transformer's sizes; its ids are those of the text, then the codes."""
        parsed = janus_config(config)
        spec = llama_spec(parsed.decoder)
        positions = min(spec.max_positions, parsed.side**2 + _PROMPT)
        return replace(spec, vocab=spec.vocab + parsed.codes, max_positions=positions)

    def entries(self, config: dict) -> dict:
        return janus_config(config).decoder | {"vocab_size": self.spec(config).vocab}

    def network(self, config: dict, vocab: ImageVocab | None = None) -> Network:
        parsed = janus_config(config)
        with torch.device("meta"):
            module = JanusNetwork(self.spec(config), parsed)
        keys = janus_keys(module.spec, module.vocab.first_id, parsed.keys)
        return Network(module, keys, ignored=(parsed.keys.codec, *parsed.keys.unused))

    def finish(self, network: JanusNetwork, prompts: Prompts) -> Transformer:
        network.embed_codes()
        return network.transformer

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        config = read_object(folder / "config.json")
        with naming(folder):
            parsed = janus_config(config)
        files = janus_vq(folder, parsed.keys.codec, parsed.side)
        if files.config.n_embed != parsed.codes:
            raise ValueError(
                f"{folder}: the codec has {files.config.n_embed} codes, config.json {parsed.codes}"
            )
        return files
