"""Chameleon family in its public Hugging Face format: Anole, and ckpts/tiny with smaller numbers.

A checkpoint folder holds config.json and the transformer's weights; Meta's folder `tokenizer`, inside it or elsewhere
(models/files/places.py), holds text_tokenizer.json, vqgan.yaml and the VQGAN's weights.
"""

import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from tokenizers import Tokenizer

from models.base import ImageGrid, ImageVocab, PromptRows, TargetOptions, TransformerSpec
from models.codecs.codec import META, Codec
from models.codecs.vqgan import ImageTokenizer, load_bundled_vqgan, load_vqgan
from models.files.folders import given_folder
from models.files.places import BUNDLED_VQGAN, TokenizerFiles, find_tokenizer
from models.files.weights import KeyMap, Network, Slot, block_keys, read_json
from models.linear import pack_weights
from models.targets.target import TransformerTarget
from models.transformer import Transformer

BOS, PAD, END_OF_TURN, BEGIN_IMAGE = "<s>", "<pad>", "<reserved08706>", "<racm3:break>"
FRAME = (BOS, PAD, END_OF_TURN, BEGIN_IMAGE)  # the tokens around a prompt's text
_IMAGE_PREFIX = "IMGIMG"
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


def chameleon_spec(config: dict) -> TransformerSpec:
    """The transformer that a config.json describes; ValueError names a missing entry or one that is not allowed."""
    config = {name: value for name, value in config.items() if value is not None}
    for name, only in (
        ("hidden_act", "silu"),
        ("rope_scaling", None),
        ("attention_bias", False),
        ("mlp_bias", False),
    ):
        if config.get(name, only) != only:
            raise ValueError(f"config.json: {name} is {config[name]!r}; allowed: {only!r}")
    rope = config.get("rope_parameters", {})
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise ValueError(f"config.json: rope_parameters is {rope!r}; allowed: rope_type 'default'")
    config.setdefault("rope_theta", rope.get("rope_theta") or 10000.0)
    for name in (*_SIZES, "num_key_value_heads"):
        if name in config and (type(config[name]) is not int or config[name] < 1):
            raise ValueError(
                f"config.json: {name} is {config[name]!r}; allowed: whole numbers from 1"
            )
    for name in ("rms_norm_eps", "rope_theta"):
        if name in config and (
            type(config[name]) not in (int, float) or not 0 < config[name] < math.inf
        ):
            raise ValueError(f"config.json: {name} is {config[name]!r}; allowed: numbers above 0")
    if missing := [name for name in _SIZES if name not in config]:
        raise ValueError(f"config.json lacks the entry {missing[0]!r}")
    return TransformerSpec(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config.get("num_key_value_heads", config["num_attention_heads"]),
        max_positions=config["max_position_embeddings"],
        norm_eps=config.get("rms_norm_eps", 1e-5),
        rope_theta=config["rope_theta"],
        swin_norm=config.get("swin_norm", False),
    )


def chameleon_keys(spec: TransformerSpec, vocab: ImageVocab | None) -> KeyMap:
    """Public keys -> parameters of `Transformer`; with a vocab, the head holds its image rows only."""
    scored = slice(vocab.first_id, vocab.first_id + vocab.size) if vocab else slice(None)
    keys = {
        "model.embed_tokens.weight": Slot("embedding.weight"),
        "model.norm.weight": Slot("norm.weight"),
        "lm_head.weight": Slot("head.weight", source=scored, height=spec.vocab),
    }
    for layer in range(spec.layers):
        keys |= block_keys(spec, "model.", "blocks.blocks.", layer)
    return keys


def chameleon_network(spec: TransformerSpec, vocab: ImageVocab) -> Network:
    """The transformer, with a head for image codes only, and its public keys."""
    with torch.device("meta"):
        return Network(
            Transformer(spec, vocab.size), chameleon_keys(spec, vocab), ignored=(BUNDLED_VQGAN,)
        )


class ChameleonVocab:
    """Ids by name, from the tokenizer file; no id is written in code."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.ids = tokenizer.get_vocab()

    def __getitem__(self, name: str) -> int:
        if name not in self.ids:
            raise ValueError(f"text_tokenizer.json has no token {name!r}")
        return self.ids[name]

    @cached_property
    def image(self) -> ImageVocab:
        """The image ids. A name spells its code: IMGIMG, the decimal digits as letters A to J, Z."""
        code_of = {
            self.ids[name]: int(
                "".join(str(ord(letter) - ord("A")) for letter in name[len(_IMAGE_PREFIX) : -1])
            )
            for name in self.ids
            if name.startswith(_IMAGE_PREFIX)
        }
        first = min(code_of, default=0)
        if not code_of or any(code_of.get(first + code) != code for code in range(len(code_of))):
            raise ValueError(
                "the image tokens of text_tokenizer.json are not one run of ids in the order of their codes"
            )
        return ImageVocab(first, len(code_of))


class Chameleon(TransformerTarget):
    """Text-to-image with a Chameleon transformer: `<s> text <reserved08706> <racm3:break>`, then the image's tokens."""

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
        network, *parts = cls._outline(folder, options)
        network.fill(folder, options.dtype, options.device)
        pack_weights(network.module)
        return cls(network.module, *parts)

    @classmethod
    def codec(cls, folder: Path, options: TargetOptions) -> Codec:
        """What a checkpoint does with pictures and captions; its transformer is not read. Errors as `load`."""
        network, *parts = cls._outline(folder, options)
        target = cls(network.module, *parts)
        return Codec(target.images, target.grid, target.vocab.size, target.length, cls.fit)

    @classmethod
    def _outline(
        cls, folder: Path, options: TargetOptions
    ) -> tuple[Network, ChameleonVocab, ImageTokenizer, ImageGrid]:
        """The network, still without weights, and the other parts."""
        spec = chameleon_spec(read_json(folder / "config.json"))
        files = find_tokenizer(folder, given_folder(options.tokenizer_path, "--tokenizer_path"))
        vocab = ChameleonVocab(load_tokenizer(files.text))
        images = load_images(folder, files.vqgan, options.device)
        check_sizes(files, vocab, images.config.n_embed, spec.vocab)
        grid = cls.image_grid(images, vocab, options)
        if spec.max_positions <= (needed := grid.slots(grid.tokens)):
            size = f"an image of {grid.rows} x {grid.columns} tokens takes {needed}"
            raise ValueError(
                f"config.json: max_position_embeddings is {spec.max_positions}; {size}"
            )
        return chameleon_network(spec, vocab.image), vocab, images, grid

    @classmethod
    def image_grid(
        cls, images: ImageTokenizer, words: ChameleonVocab, options: TargetOptions
    ) -> ImageGrid:
        """The grid of the image tokens."""
        return ImageGrid(*images.grid)

    def prompt(self, text: str, guidance: int) -> PromptRows:
        words = self.words
        tail, empty = [words[END_OF_TURN], words[BEGIN_IMAGE]], [words[BOS], words[BEGIN_IMAGE]]
        return self.framed(text, tail, empty, guidance)

    def framed(self, text: str, tail: list[int], empty: list[int], guidance: int) -> PromptRows:
        """`<s> text tail` and, with guidance 2, the shorter row `empty`; ValueError if the image finds no room."""
        row = [
            self.words[BOS],
            *self.words.tokenizer.encode(text, add_special_tokens=False).ids,
            *tail,
        ]
        room = self.spec.max_positions - self.grid.slots(self.grid.tokens)
        if len(row) > room:
            raise ValueError(
                f"the prompt has {len(row)} tokens with its frame, the model takes {room}: {text[:60]!r}"
            )
        padding = len(row) - len(empty)
        rows = [row, [self.words[PAD]] * padding + empty][:guidance]
        starts = [0, padding][:guidance]
        return PromptRows(
            torch.tensor(rows, device=self.device), torch.tensor(starts, device=self.device)
        )

    def drafter_spec(self, config: dict) -> TransformerSpec:
        return drafter_spec(config, self.spec)


def drafter_spec(config: dict, target: TransformerSpec) -> TransformerSpec:
    """Of a drafter in the Chameleon layout, with room for the target's sequences."""
    return replace(chameleon_spec(config), max_positions=target.max_positions)


def load_images(folder: Path, home: Path | None, device: torch.device) -> ImageTokenizer:
    """The VQGAN from the folder of Meta's files, or from a checkpoint's own weights if that is None."""
    return (
        load_bundled_vqgan(folder, str(device))
        if home is None
        else load_vqgan(home, device=str(device))
    )


def check_sizes(files: TokenizerFiles, vocab: ChameleonVocab, codes: int, ids: int) -> None:
    """ValueError unless the text tokenizer fits a VQGAN of so many codes and a transformer of so many ids."""
    highest = max(vocab.ids.values())
    if codes != vocab.image.size or highest >= ids:
        raise ValueError(
            f"{files.text} names {vocab.image.size} image codes and ids up to {highest}; "
            f"the VQGAN has {codes} codes, config.json {ids} ids"
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer file; ValueError names a missing or damaged one."""
    if not path.is_file():
        raise ValueError(f"missing file: {path}")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ValueError(f"{path} is not a tokenizer file: {error}") from error
