"""LlamaGen, text to image (arXiv 2406.06525).

Files are in the Hugging Face layout of LANTERN's jadohu/LlamaGen-T2I and -T2I-2. A checkpoint
folder holds config.json and the weights. Image tokenizer and text encoder are files of their own:
`--vq_path`, `--text_encoder_path`.

A prompt is not tokens but T5's features of the caption, in the last of 120 slots; the slots
before them are padding. The unconditional row holds a learned table instead, after the same
padding. Image token c stands at position 120 + c however long the caption is, and is rotated by its
row and column; the queries and keys of the prompt's slots are not rotated but zero.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.fields import mismatch, settled
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
from models.codecs.codec import Codec
from models.codecs.vqgan_files import CODEBOOK, VqganFiles, llamagen_vq
from models.cpu.linear import Linear
from models.files.entries import refuse_entry, require_size, require_values
from models.files.folders import checkpoint_folder
from models.files.network import KeyMap, Network, Slot
from models.files.tensors import read_tensors
from models.files.weights import folder_shapes
from models.targets.captions import clean_caption
from models.targets.family import Checked, Family, Texts, Together
from models.targets.llama import decoder_keys, decoder_spec
from models.targets.prompts import Prompts
from models.targets.text_encoder import TextEncoder, encoder_network, load_tokenizer
from models.transformer import Transformer
from support.output import remark

_STAGES = {16: "t2i", 32: "t2i2"}  # codes per side -> `input_type` of the public drafters
_TEXT, _VQ = "text_encoder_path", "vq_path"


class Caption(nn.Module):
    """Project T5's features to the transformer's width; `empty` holds the rows of no caption."""

    def __init__(self, width: int, hidden: int, slots: int):
        super().__init__()
        self.fc1 = Linear(width, hidden, bias=False)
        self.fc2 = Linear(hidden, hidden, bias=False)
        self.empty = nn.Parameter(torch.zeros(slots, width))

    def forward(self, features: Tensor) -> Tensor:
        """(rows, n, width) -> (rows, n, hidden)."""
        return self.fc2(F.gelu(self.fc1(features), approximate="tanh"))


class LlamaGenNetwork(nn.Module):
    """Transformer and caption projection: the networks in a checkpoint folder."""

    def __init__(self, spec: TransformerSpec, width: int):
        super().__init__()
        self.transformer = Transformer(spec, spec.vocab)
        self.caption = Caption(width, spec.hidden, rope_of(spec).condition)

    @property
    def spec(self) -> TransformerSpec:
        return self.transformer.spec


class LlamaGenPrompts(Prompts):
    """Captions as T5's features; longer ones than the slots are cut, as in the recipe."""

    caption: Caption  # of the network, known once its weights are read

    def __init__(self, text: TextEncoder, spec: TransformerSpec):
        rope = rope_of(spec)
        self.text, self.slots = text, rope.condition
        self.vocab = ImageVocab(0, spec.vocab)
        self.grid = ImageGrid(rope.side, rope.side)

    def rows(self, text: str, guidance: int, device: torch.device) -> PromptRows:
        # The encoder computes in bf16 whatever the target's type is.
        features = self.text(text).to(self.caption.empty)  # (n, width)
        padding = self.slots - len(features)
        # on the left, as the model was trained: the caption ends where the image begins
        caption = F.pad(features, (0, 0, padding, 0))
        # drafters read ids, and learned to read zeros here
        ids = torch.zeros(guidance, self.slots, dtype=torch.long, device=device)
        starts = torch.full((guidance,), padding, device=device)
        condition = torch.stack([caption, self.caption.empty][:guidance])
        return PromptRows(ids, starts, torch.zeros_like(starts), condition)

    def length(self, text: str) -> int:
        if self.text.cuts(text):
            remark(f"prompts are cut after {self.slots} tokens, as in LlamaGen's recipe")
        return slots_of(text, self.slots)

    def read(
        self, transformer: Transformer, prompt: PromptRows, context: Context, layers: Layers
    ) -> Tensor:
        assert context.mask is not None, "a prompt with padding has one"
        mask = padding_visible(context.mask, prompt.starts)
        return transformer.read(self.caption(prompt.condition), replace(context, mask=mask), layers)

    def move(self, device: torch.device) -> None:
        self.caption.to(device)
        self.text.model.to(device)


def slots_of(text: str, slots: int) -> int:
    """Return the slots of a caption; a ValueError for one of which the recipe leaves nothing."""
    if not clean_caption(text):
        raise ValueError(f"LlamaGen's recipe leaves nothing of the prompt {text[:60]!r}")
    return slots


def padding_visible(mask: Tensor, starts: Tensor) -> Tensor:
    """Return the additive mask (rows, 1, n, n) of a prompt with padding that sees earlier padding.

    No token of the caption and no image token sees padding. LlamaGen's public drafters do, and they
    were trained on features of padding made this way: LANTERN's mask does it in bf16.
    """
    slot = torch.arange(mask.shape[-1], device=mask.device)
    padding = slot < starts[:, None]  # (rows, n)
    seen = padding[:, :, None] & padding[:, None] & (slot <= slot[:, None])
    return mask.masked_fill(seen[:, None], 0.0)


def rope_of(spec: TransformerSpec) -> ImageRope:
    """Return how the family rotates image tokens."""
    assert spec.image_rope is not None, "`rotated_spec` enters it"
    return spec.image_rope


def rotated_spec(config: Mapping[str, Any], image: ImageRope) -> TransformerSpec:
    """Return the sizes in a config.json, of a target or a drafter, with LlamaGen's rotation."""
    positions = image.condition + image.side**2
    spec = decoder_spec({"max_position_embeddings": positions, **config})
    if spec.head_dim % 4:
        got = f"{spec.hidden} / {spec.heads}"
        raise mismatch("config.json: channels per head", got, "a multiple of 4")
    theta = config.get("rope_base") or 10000.0
    return replace(spec, qk_norm=False, swin_norm=False, rope_theta=theta, image_rope=image)


def llamagen_keys(spec: TransformerSpec) -> KeyMap:
    """Return the names of LlamaGen's weights in its authors' files."""
    public = "model.cls_embedding."
    caption = {f"{public}uncond_embedding": Slot("caption.empty")}
    for name in ("fc1", "fc2"):
        caption[f"{public}cap_proj.{name}.weight"] = Slot(f"caption.{name}.weight")
    return decoder_keys(spec, ours="transformer.") | caption


class LlamaGen(Family):
    """Text-to-image with LlamaGen. side: codes per row and column of the stage; None: any."""

    name = "llamagen"
    text_part, text_flag, image_flag = "text encoder", _TEXT, _VQ

    def __init__(self, side: int | None = None):
        self.side = side

    def spec(self, config: dict) -> TransformerSpec:
        require_values(config, {"input_type": ("t2i",), "pretraining_tp": (1,)})
        names = ("block_size", "cls_token_num", "caption_dim")
        tokens, slots, _ = (require_size(name, config.get(name)) for name in names)
        side = math.isqrt(tokens)
        if side**2 != tokens:
            refuse_entry("block_size", tokens, "a square")
        if self.side not in (None, side):
            raise ValueError(
                f"config.json: block_size is {tokens}, expected {self.side**2}: "
                "an image of --model llamagen has 256 tokens, of --model llamagen2 1024"
            )
        return replace(rotated_spec(config, ImageRope(slots, side)), max_positions=slots + tokens)

    def network(self, config: dict, vocab: ImageVocab | None = None) -> Network:
        spec = self.spec(config)
        with torch.device("meta"):
            return Network(LlamaGenNetwork(spec, config["caption_dim"]), llamagen_keys(spec))

    def drafter(self, config: dict, target: TransformerSpec) -> TransformerSpec:
        """Return the sizes of a public head."""
        image, stage = rope_of(target), config.get("input_type")
        expected = _STAGES.get(image.side, stage)
        if stage not in (None, expected):
            text = f"input_type is {stage!r}; the target needs {expected!r}"
            raise ValueError(f"config.json of the drafter: {text}")
        # heads read token i + 1 at slot i, so their condition is one slot shorter
        spec = rotated_spec(config, replace(image, condition=image.condition - 1))
        return replace(
            spec, max_positions=target.max_positions, first_norm=False, hides_padding=False
        )

    def finish(self, network: nn.Module, prompts: Prompts) -> Transformer:
        assert isinstance(network, LlamaGenNetwork) and isinstance(prompts, LlamaGenPrompts)
        prompts.caption = network.caption
        return network.transformer

    def words(self, folder: Path, options: TargetOptions) -> TextEncoder:
        config, spec = self._config(folder)
        home = _text_home(options)
        text = TextEncoder.load(home, rope_of(spec).condition, options.device)
        refuse_other(_TEXT, home, text.model.config.d_model, folder, config, "caption_dim")
        return text

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        # the weights do not tell the image's side, config.json does
        config, spec = self._config(folder)
        files = llamagen_vq(Path(settled(options.vq_path)), rope_of(spec).side)
        refuse_other(_VQ, options.vq_path, files.config.n_embed, folder, config, "vocab_size")
        return files

    def codec(self, folder: Path, options: TargetOptions) -> Codec:
        images, spec = self.tokenizer(folder, options), self._config(folder)[1]
        rope = rope_of(spec)
        grid = ImageGrid(rope.side, rope.side)
        slots = partial(slots_of, slots=rope.condition)
        return Codec(images, grid, spec.vocab, slots, self.fit)

    def codebook(self, folder: Path, options: TargetOptions) -> Tensor:
        """Return the latents of the image codes, (codes, width), fp32, as they are stored."""
        # LANTERN's published table is of these, not of the vectors of length 1 that are decoded.
        files = self.image_files(folder, options)
        return dict(read_tensors(files.paths, CODEBOOK))[CODEBOOK].float()

    def check_text(self, folder: Path, options: TargetOptions) -> Checked:
        home = _text_home(options)
        network = encoder_network(home)
        network.check(folder_shapes(home), f"--{_TEXT}: {home}")
        load_tokenizer(home)
        count = sum(parameter.numel() for parameter in network.module.parameters())
        width = network.module.config.d_model
        text = f"{home}: T5 of width {width}, {count / 1e6:.1f} M parameters of the encoder"
        return Checked(text, 2 * count)

    def compatible(self, folder: Path, options: TargetOptions) -> Together:
        home, (config, spec) = _text_home(options), self._config(folder)
        width = encoder_network(home).module.config.d_model
        refuse_other(_TEXT, home, width, folder, config, "caption_dim")
        self.image_files(folder, options)
        image, text = rope_of(spec), "text encoder, image tokenizer and config.json fit together"
        grid, slots = ImageGrid(image.side, image.side), image.condition
        return Together(text, grid=grid, codes=spec.vocab, caption=slots)

    def _prompts(
        self,
        words: Texts,
        folder: Path,
        spec: TransformerSpec,
        options: TargetOptions,
    ) -> LlamaGenPrompts:
        assert isinstance(words, TextEncoder)
        return LlamaGenPrompts(words, spec)


def _text_home(options: TargetOptions) -> Path:
    return checkpoint_folder(settled(options.text_encoder_path), f"--{_TEXT}")


def refuse_other(
    flag: str, path: object, size: int, folder: Path, config: dict, entry: str
) -> None:
    """Raise a ValueError unless a part's size is the one that config.json expects."""
    if size != config[entry]:
        raise ValueError(
            f"--{flag}: {path} has {size}, {folder / 'config.json'} has {entry} {config[entry]}"
        )


def llamagen() -> LlamaGen:
    """Build the family of the first stage: images of 256 pixels."""
    return LlamaGen(side=16)


def llamagen2() -> LlamaGen:
    """Build the family of the second stage: images of 512 pixels."""
    return LlamaGen(side=32)
