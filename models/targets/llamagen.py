"""LlamaGen, text to image (arXiv 2406.06525).

Files are in the Hugging Face layout of LANTERN's jadohu/LlamaGen-T2I and -T2I-2.

A checkpoint folder holds config.json and the weights. Image tokenizer and text encoder are files of
their own: `--vq_path`, `--text_encoder_path`.

A prompt is not tokens but T5's features of the caption, in the last of 120 slots; the slots
before them are padding. The unconditional row holds a learned table instead, after the same
padding. Image token c stands at position 120 + c however long the caption is, and is rotated by its
row and column; the queries and keys of the prompt's slots are not rotated but zero.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from models.base import (
    Context,
    ImageGrid,
    ImageRope,
    ImageVocab,
    Layers,
    PromptRows,
    TargetOptions,
    TransformerSpec,
)
from models.codecs.codec import ADM, Codec
from models.codecs.llamagen_vq import load_llamagen_vq
from models.codecs.vqgan import ImageTokenizer
from models.files.sizes import fitting_config
from models.files.weights import naming
from models.targets.llamagen_network import (
    LlamaGenNetwork,
    drafter_spec,
    llamagen_network,
    llamagen_spec,
)
from models.targets.text_encoder import TextEncoder
from models.targets.transformer_target import TransformerTarget
from support.json_files import read_object


class LlamaGen(TransformerTarget):
    """Text-to-image with LlamaGen; captions longer than the slots are cut, as in the recipe."""

    name = "llamagen"

    def __init__(self, network: LlamaGenNetwork, text: TextEncoder, images: ImageTokenizer):
        self.transformer, self.caption = network.transformer, network.caption
        self.text, self.images, self.spec = text, images, network.transformer.spec
        self.grid, self.vocab = ImageGrid(*images.grid), ImageVocab(0, self.spec.vocab)
        self.dtype, self.device = self.caption.empty.dtype, self.caption.empty.device

    @classmethod
    def load(cls, folder: Path, options: TargetOptions, side: int) -> "LlamaGen":
        """Read a checkpoint folder, and the files of text encoder and image tokenizer.

        Args:
            folder: config.json and weights.
            options: paths of text encoder and image tokenizer.
            side: codes per row and column that the folder has to have.

        Raises:
            ValueError: naming what is missing, damaged or does not fit.
        """
        config, spec = fitting_config(folder, partial(llamagen_spec, side=side))
        parts = _read_parts(folder, config, spec.image_rope, options)
        network = llamagen_network(config)
        network.fill(folder, options.dtype, options.device)
        return cls(network.module, *parts)

    @classmethod
    def codec(cls, folder: Path, options: TargetOptions, side: int | None = None) -> Codec:
        """Return what a checkpoint does with pictures and captions.

        Transformer and text encoder are not read. Arguments and errors as `load`.
        """
        config = read_object(folder / "config.json")
        with naming(folder):
            image = llamagen_spec(config, side).image_rope
        images = _read_images(folder, config, image, options)
        return Codec(
            images,
            ImageGrid(*images.grid),
            images.config.n_embed,
            lambda text: image.condition,
            ADM,
        )

    def place(self, device: torch.device) -> None:
        super().place(device)
        self.caption.to(device)
        self.text.model.to(device)

    def prompt(self, text: str, guidance: int) -> PromptRows:
        features = self.text(text).to(self.caption.empty)  # (n, width)
        slots = len(self.caption.empty)
        # on the left, as the model was trained: the caption ends where the image begins
        caption = F.pad(features, (0, 0, slots - len(features), 0))
        ids = torch.zeros(
            guidance, slots, dtype=torch.long, device=self.device
        )  # what drafters read
        starts = torch.full((guidance,), slots - len(features), device=self.device)
        condition = torch.stack([caption, self.caption.empty][:guidance])
        return PromptRows(ids, starts, torch.zeros_like(starts), condition)

    def length(self, text: str) -> int:
        return len(self.caption.empty)

    def read(self, prompt: PromptRows, context: Context, layers: Layers = ()) -> Tensor:
        mask = padding_visible(context.mask, prompt.starts)
        embeddings = self.caption(prompt.condition)
        return self.transformer.read(embeddings, replace(context, mask=mask), layers)

    def drafter_spec(self, config: dict) -> TransformerSpec:
        return drafter_spec(config, self.spec)


def padding_visible(mask: Tensor, starts: Tensor) -> Tensor:
    """Return the additive mask (rows, 1, n, n) of a prompt with padding that sees earlier padding.

    No token of the caption and no image token sees padding. LlamaGen's public drafters do, and they
    were trained on features of padding made this way: LANTERN's mask does it in bf16.
    """
    slot = torch.arange(mask.shape[-1], device=mask.device)
    padding = slot < starts[:, None]  # (rows, n)
    seen = padding[:, :, None] & padding[:, None] & (slot <= slot[:, None])
    return mask.masked_fill(seen[:, None], 0.0)


def _read_parts(
    folder: Path, config: dict, image: ImageRope, options: TargetOptions
) -> tuple[TextEncoder, ImageTokenizer]:
    """Return text encoder and image tokenizer.

    Raises:
        ValueError: naming the flag of a part that is missing or of other sizes.
    """
    path = given_path(options, "text_encoder_path")
    images = _read_images(folder, config, image, options)
    text = TextEncoder.load(path, image.condition, options.device)
    refuse_other("text_encoder_path", path, text.width, folder, config, "caption_dim")
    return text, images


def _read_images(
    folder: Path, config: dict, image: ImageRope, options: TargetOptions
) -> ImageTokenizer:
    path = given_path(options, "vq_path")
    images = load_llamagen_vq(Path(path), image.side, options.device)
    refuse_other("vq_path", path, images.config.n_embed, folder, config, "vocab_size")
    return images


def given_path(options: TargetOptions, flag: str) -> str:
    """Return the value of a flag that LlamaGen needs; ValueError if it is not given."""
    if getattr(options, flag) is None:
        raise ValueError(f"--{flag}: missing; LlamaGen needs it")
    return getattr(options, flag)


def refuse_other(flag: str, path: str, found: int, folder: Path, config: dict, entry: str) -> None:
    """Raise a ValueError unless a part's size is the one that config.json expects."""
    if found != config[entry]:
        raise ValueError(
            f"--{flag}: {path} has {found}, {folder / 'config.json'} has {entry} {config[entry]}"
        )
