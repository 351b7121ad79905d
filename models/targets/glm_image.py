"""GLM-Image's autoregressive stage: GLM-4 that writes the tokens of a small and of a large grid.

A sequence is the checkpoint's chat template around the text, `<sop>32 32<eop><sop>16 16<eop>` with
rows and columns of both grids, the image start, then the small grid and the large one, without row
ends. There is no unconditional row. A token stands for 32 x 32 pixels, which diffusers'
GlmImagePipeline paints where the whole checkpoint is there; else tokens are written.
"""

import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor, nn

from configs.fields import settled
from configs.targets import TARGETS, ImageSizes
from models.base import GridRope, ImageGrid, ImageVocab, PromptRows, TargetOptions, TransformerSpec
from models.codecs.codec import Codec, Fit
from models.codecs.glm_codec import GlmPainter, GlmVision, TokenPicture, glm_codebook, lacks_painter
from models.files.entries import filled, refuse_entry, require_values
from models.files.network import KeyMap, Slot
from models.files.recognition import require_model
from models.files.tokenizer_file import load_tokenizer, row_ids
from models.files.weights import HUB_TOKENIZER
from models.rotary import RotaryGrids
from models.targets.family import Checked, Family
from models.targets.llama import HEAD, llama_spec, rope_parameters
from models.targets.prompts import ImageCodes, Prompts, Words
from models.transformer import Transformer
from support.extras import install
from support.json_files import read_object
from support.output import remark

# transformers' GlmImageTextConfig, GlmImageVQVAEConfig and GlmImageConfig
_DEFAULTS = {
    "vocab_size": 168_064,
    "hidden_size": 4096,
    "intermediate_size": 13_696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "vision_vocab_size": 16_512,
}
_CODES, _SECTIONS = 16_384, [8, 12, 12]
_BUILT = {"hidden_act": ("silu",), "attention_bias": (True,)}
# Of the largest image and its small grid, and 2,000 for a prompt. Caches have room for all.
_POSITIONS = 6400
UNREAD = ("model.visual.", "model.vqmodel.")  # what reads pictures given to the model
_CELL = 32  # pixels of a token
_TOKENS = {"grid_bos_token": "<sop>", "grid_eos_token": "<eop>", "bos_token": None}
_TEXT = "\ue000"  # stands for the text in a rendered template
_TOKENS_ONLY = (
    "images stay tokens, a pixel of img/*.png each (256 x red + green), because {}; docs/models.md "
    "says how diffusers' GlmImagePipeline(prior_token_ids=...) paints them later"
)


class GlmWords(Words):
    """The processor's tokenizer, and what its chat template puts around a text."""

    def __init__(self, folder: Path):
        path = folder / HUB_TOKENIZER
        settings = read_object(folder / "tokenizer_config.json")
        for group in ("extra_special_tokens", "model_specific_special_tokens"):
            more = settings.get(group)
            settings = {**(more if isinstance(more, dict) else {}), **settings}
        names = [settings.get(name, default) for name, default in _TOKENS.items()]
        names = [name.get("content") if isinstance(name, dict) else name for name in names]
        texts = [name for name in names if isinstance(name, str)]
        if len(texts) < len(names):
            raise ValueError(
                f"{folder}/tokenizer_config.json: expected names of {', '.join(_TOKENS)}"
            )
        super().__init__(load_tokenizer(path), path, texts)
        self.begin_size, self.end_size, self.begin_image = map(self.__getitem__, texts)
        before, _, after = _template(folder, settings).partition(_TEXT)
        self.before, self.after = (_pieces(self.tokenizer, text) for text in (before, after))


def _template(folder: Path, settings: dict) -> str:
    """Return a user's message in the checkpoint's chat template; ValueError if that fails."""
    try:
        from jinja2 import TemplateError  # no other family needs the package
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise ValueError(f"{folder}: its chat template needs jinja2: {install('glm')}") from error

    path = folder / "chat_template.jinja"
    message = {"role": "user", "content": [{"type": "text", "text": _TEXT}]}
    try:
        text = path.read_text("utf-8") if path.is_file() else settings.get("chat_template")
        if not isinstance(text, str):
            raise ValueError(f"missing file: {path}")
        # as transformers renders it
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        rendered = environment.from_string(text).render(messages=[message])
    except (UnicodeDecodeError, TemplateError) as error:
        raise ValueError(f"{path} cannot be rendered: {error}") from error
    if rendered.count(_TEXT) != 1:
        raise ValueError(f"{path}: expected a user's text once, got {rendered.count(_TEXT)} times")
    return rendered


def _pieces(tokenizer: Tokenizer, text: str) -> list[str | int]:
    """Return a template's text as texts and ids of control tokens."""
    ids = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items()}
    # The longest name first: a regular expression takes the first alternative that fits.
    names = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    return [ids.get(piece, piece) for piece in re.split(f"({names})", text)]


class GlmPrompts(Prompts):
    """One row: the template with the text, both sizes, the image start."""

    words: GlmWords
    sizes: ImageSizes = settled(TARGETS["glm_image"].sizes)

    def image_vocab(self, spec: TransformerSpec) -> ImageVocab:
        words, count = self.words, self.codes.count
        highest = max(words.ids.values())
        if words.begin_image != count or highest >= spec.vocab:
            raise ValueError(
                f"{words.path} begins images with id {words.begin_image} and has ids up to "
                f"{highest}; config.json has {count} codes before that, and {spec.vocab} ids"
            )
        return ImageVocab(0, count)

    def image_grid(self) -> ImageGrid:
        grid = super().image_grid()
        return replace(grid, preview=self.sizes.small_grid(grid.rows, grid.columns))

    def ids(self, text: str) -> list[int]:
        words, sizes = self.words, list[str | int]()
        for rows, columns in reversed(self.grid.sizes):
            sizes += [words.begin_size, f"{rows} {columns}", words.end_size]
        return row_ids(
            words.tokenizer, *words.before, text, *words.after, *sizes, words.begin_image
        )

    def empty(self, row: list[int]) -> list[int]:
        return row  # as long; nothing reads it

    def rows(self, text: str, guidance: int, device: torch.device) -> PromptRows:
        if guidance > 1:
            raise ValueError("glm_image has no row without a prompt: expected --cfg 1")
        ids = torch.tensor([self.row(text)], device=device)
        # rotary positions are counted from the image on, which begins where the room ends
        origins = torch.tensor([ids.shape[1] - self.room], device=device)
        return PromptRows(ids, torch.zeros_like(origins), origins)


class GlmImage(Family):
    """GLM-Image's autoregressive part, whose tokens a diffusion model paints."""

    name = "glm_image"
    prompts = GlmPrompts
    fit = Fit(Image.Resampling.BICUBIC, halves=False)
    decoded = False
    decoder, ignored = "model.language_model.", UNREAD

    def entries(self, config: dict) -> dict:
        text = self._text(config)
        theta = rope_parameters(text).get("rope_theta") or 1e4
        rope = {"rope_type": "default", "rope_theta": theta}
        entries = {name: text[name] for name in _DEFAULTS if name != "vision_vocab_size"}
        return {"model_type": "glm_image", **entries, "rope_parameters": rope}

    def spec(self, config: dict) -> TransformerSpec:
        text = self._text(config)
        spec = llama_spec(self.entries(config), text.get("head_dim"), _POSITIONS)
        width, rope = spec.head_dim, rope_parameters(text)
        share = rope.get("partial_rotary_factor", 1.0)
        sections = rope.get("mrope_section", _SECTIONS)
        if type(share) not in (int, float) or not 0 < share <= 1:
            refuse_entry("partial_rotary_factor", share, "numbers above 0, up to 1")
        turned = int(width * share)
        whole = isinstance(sections, list) and all(type(size) is int for size in sections)
        if turned % 2 or not whole or 2 * sum(sections) != turned:
            refuse_entry("mrope_section", sections, f"sizes that sum up to {turned / 2:g}")
        return replace(
            spec, qkv_bias=True, sandwich_norm=True, grid_rope=GridRope(turned, tuple(sections))
        )

    def codes(self, config: dict) -> ImageVocab:
        return ImageVocab(0, _codes(config))

    def keys(self, config: dict, spec: TransformerSpec, vocab: ImageVocab) -> KeyMap:
        keys = super().keys(config, spec, vocab)
        height = self._text(config)["vision_vocab_size"]
        # The public head scores more ids than there are codes; codes are the first.
        keys[HEAD] = Slot("head.weight", source=slice(0, vocab.size), height=height)
        for layer in range(spec.layers):
            public, ours = f"{self.decoder}layers.{layer}.", f"blocks.blocks.{layer}."
            for name in ("gate", "up"):
                del keys[f"{public}mlp.{name}_proj.weight"]
            keys[f"{public}mlp.gate_up_proj.weight"] = Slot(f"{ours}mlp.gate_up.weight")
            for name in "qkv":
                rows = keys[f"{public}self_attn.{name}_proj.weight"].rows
                slot = Slot(f"{ours}attention.qkv.bias", rows)
                keys[f"{public}self_attn.{name}_proj.bias"] = slot
            for theirs, name in (("self_attn", "attention"), ("mlp", "mlp")):
                # The norms behind; `post_attention_layernorm` is the MLP's input norm, as in Llama.
                slot = Slot(f"{ours}{name}_after.weight")
                keys[f"{public}post_{theirs}_layernorm.weight"] = slot
        return keys

    @torch.no_grad()
    def finish(self, network: nn.Module, prompts: Prompts) -> Transformer:
        """Tell the rotary table the image's size, and order channels as it turns them."""
        network = super().finish(network, prompts)
        spec, rotary = network.spec, network.blocks.rotary
        assert isinstance(rotary, RotaryGrids)
        rotary.grid = prompts.grid
        turned = (spec.heads + spec.kv_heads) * spec.head_dim
        for block in network.blocks.layers:
            for parameter in (block.attention.qkv.weight, block.attention.qkv.bias):
                heads = parameter[:turned].unflatten(0, (-1, spec.head_dim))
                parameter[:turned] = heads[:, rotary.order.to(heads.device)].flatten(0, 1)
        return network

    def words(self, folder: Path, options: TargetOptions) -> GlmWords:
        folders = [folder, _root(folder) / "processor"]
        for home in folders:
            if (home / HUB_TOKENIZER).is_file():
                return GlmWords(home)
        raise ValueError(f"missing file: {HUB_TOKENIZER} in {' or '.join(map(str, folders))}")

    def images(self, folder: Path, options: TargetOptions) -> TokenPicture:
        if lacks := lacks_painter(_root(folder)):
            remark(_TOKENS_ONLY.format(lacks))
            return TokenPicture()
        return TokenPicture(GlmPainter.open(_root(folder), options.device))

    def image_codes(self, folder: Path, options: TargetOptions) -> ImageCodes:
        side = GlmPrompts.sizes.preview
        return ImageCodes(_codes(read_object(folder / "config.json")), side, _CELL)

    def codec(self, folder: Path, options: TargetOptions) -> Codec:
        config, spec = self._config(folder)
        prompts = self._prompts(self.words(folder, options), folder, spec, options)
        images = GlmVision(folder, config, prompts.grid, options.device)
        count = _codes(config)
        return Codec(images, prompts.grid, count, lambda text: len(prompts.row(text)), self.fit)

    def codebook(self, folder: Path, options: TargetOptions) -> Tensor:
        return glm_codebook(folder)

    def check_images(self, folder: Path, options: TargetOptions) -> Checked:
        codec = self.codec(folder, options)
        assert isinstance(codec.images, GlmVision)
        count = sum(parameter.numel() for parameter in codec.images.files.module.parameters())
        text = f"vision encoder with {codec.vocab} codes, {count / 1e6:.1f} M parameters; "
        if lacks := lacks_painter(_root(folder)):
            return Checked(text + _TOKENS_ONLY.format(lacks))
        painter = GlmPainter.open(_root(folder), options.device)
        paints = f"diffusers {version('diffusers')} paints with {painter.root}"
        return Checked(text + paints, painter.bytes)

    def _text(self, config: dict) -> dict:
        require_model(config, self.name)
        text = config.get("text_config") or {}
        if not isinstance(text, dict):
            refuse_entry("text_config", text, "a table")
        entries = filled(text, _DEFAULTS)
        require_values(entries, _BUILT)
        return entries


def _root(folder: Path) -> Path:
    """Return the folder of the whole checkpoint, of which the autoregressive stage is a part."""
    return folder.absolute().parent


def _codes(config: dict) -> int:
    codec = config.get("vq_config") or {}
    count = codec.get("num_embeddings", _CODES) if isinstance(codec, dict) else None
    if type(count) is not int or count < 1:
        refuse_entry("vq_config", codec, "num_embeddings from 1")
    return count
