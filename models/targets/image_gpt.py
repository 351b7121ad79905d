"""Image GPT in the public files of teddykoker/image-gpt: digits and clothes, 28 x 28 pixels.

A folder holds model.ckpt, as PyTorch Lightning writes it: weights, palette and sizes. A token is a
pixel, one of the palette's 16 greys, in raster order. There is no text: the whole prompt is a
learned start vector. So prompts only name the images, and there is no guidance.

The blocks are GPT-2's, with nn.MultiheadAttention's weights and one difference: x = norm(x) + what
attention makes of norm(x), where GPT-2 adds to x itself.
"""

from pathlib import Path

import torch
from torch import nn

from models.base import ImageVocab, TargetOptions, TransformerSpec
from models.codecs.palette import Palette
from models.files.entries import refuse_entry, require_size
from models.files.network import KeyMap, Slot
from models.files.tensors import read_tensors
from models.files.weights import LIGHTNING, weight_files
from models.targets.family import Checked, Family
from models.targets.prompts import ImageCodes, Prompts, Words
from models.transformer import Transformer

_SIZES = ("embed_dim", "num_heads", "num_layers", "num_pixels", "num_vocab")
_PALETTE = "centroids"  # key of the colours among the weights
_START = "<start>"
_UNREAD = (_PALETTE, "gpt.clf_head.")  # the classifier's head is of no use here
# names in our block -> public ones; both have a weight and a bias
_BLOCK = {
    "attention_norm": "ln_1.",
    "attention.qkv": "attn.in_proj_",
    "attention.out": "attn.out_proj.",
    "mlp_norm": "ln_2.",
    "mlp.gate_up": "mlp.0.",
    "mlp.down": "mlp.2.",
}


class NoWords(Words):
    """No text tokenizer; the id after those of the colours is the start vector's."""

    def __init__(self, start: int):
        self.ids = {_START: start}

    def __getitem__(self, name: str) -> int:
        return self.ids[name]

    def __str__(self) -> str:
        return "none: the model reads no text, so prompts only name the images"


class ImageGptPrompts(Prompts):
    """Prompts of Image GPT: the start token alone."""

    pad = _START

    def first_code(self) -> int:
        return 0

    def ids(self, text: str) -> list[int]:
        return [self.words[_START]]

    def empty(self, row: list[int]) -> list[int]:
        return row  # as long; nothing reads it


class ImageGpt(Family):
    """Image GPT, whose codes are colours of a palette."""

    name = "image_gpt"
    prompts = ImageGptPrompts
    image_part = "palette"
    ignored = _UNREAD
    decoded = False

    def spec(self, config: dict) -> TransformerSpec:
        sizes = [require_size(name, config.get(name), LIGHTNING) for name in _SIZES]
        hidden, heads, layers, side, colours = sizes
        if hidden % (2 * heads):
            refuse_entry("embed_dim", hidden, f"a multiple of {2 * heads}", LIGHTNING)
        return TransformerSpec(
            vocab=colours + 1,
            hidden=hidden,
            intermediate=4 * hidden,
            layers=layers,
            heads=heads,
            kv_heads=heads,
            max_positions=side**2 + 1,
            qk_norm=False,
            qkv_bias=True,
            gpt2=True,
        )

    def codes(self, config: dict) -> ImageVocab:
        return ImageVocab(0, self.spec(config).vocab - 1)

    def entries(self, config: dict) -> dict:
        spec = self.spec(config)
        return {
            "vocab_size": spec.vocab,
            "hidden_size": spec.hidden,
            "intermediate_size": spec.intermediate,
            "num_attention_heads": spec.heads,
            "max_position_embeddings": spec.max_positions,
        }

    def keys(self, config: dict, spec: TransformerSpec, vocab: ImageVocab) -> KeyMap:
        keys = {
            "gpt.sos": Slot("embedding.weight", slice(vocab.size, None)),
            "gpt.token_embeddings.weight": Slot("embedding.weight", slice(vocab.size)),
            # The last token is never a model's input in training, so its place has no vector.
            "gpt.position_embeddings.weight": Slot("positions.weight", slice(-1)),
            "gpt.ln_f.weight": Slot("norm.weight"),
            "gpt.ln_f.bias": Slot("norm.bias"),
            "gpt.head.weight": Slot("head.weight"),
        }
        for layer in range(spec.layers):
            for ours, public in _BLOCK.items():
                for kind in ("weight", "bias"):
                    slot = Slot(f"blocks.blocks.{layer}.{ours}.{kind}")
                    keys[f"gpt.layers.{layer}.{public}{kind}"] = slot
        return keys

    @torch.no_grad()
    def finish(self, network: nn.Module, prompts: Prompts) -> Transformer:
        """Fill the row of positions that no file has: draft trees put the last token there."""
        network = super().finish(network, prompts)
        assert network.positions is not None, "as GPT-2 has them"
        network.positions.weight[-1] = 0
        return network

    def words(self, folder: Path, options: TargetOptions) -> NoWords:
        return NoWords(self._config(folder)[1].vocab - 1)

    def tokenizer(self, folder: Path, options: TargetOptions) -> Palette:
        spec, weights = self._config(folder)[1], dict(read_tensors(weight_files(folder), _PALETTE))
        colours, expected = weights.get(_PALETTE), (spec.vocab - 1, 1)
        if colours is None or tuple(colours.shape) != expected:
            found = "none" if colours is None else tuple(colours.shape)
            raise ValueError(f"{folder}: {_PALETTE}: expected greys {expected}, got {found}")
        return Palette(colours.float().to(options.device))

    def image_codes(self, folder: Path, options: TargetOptions) -> ImageCodes:
        config, spec = self._config(folder)
        return ImageCodes(spec.vocab - 1, config["num_pixels"], 1)

    def check_images(self, folder: Path, options: TargetOptions) -> Checked:
        palette = self.tokenizer(folder, options)
        return Checked(f"{len(palette.codebook)} greys, a pixel per token")
