"""A family of targets: how its files are opened, and what `inspect` looks at in them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from configs.fields import refusing
from models.base import ImageGrid, ImageVocab, TargetOptions, TransformerSpec
from models.codecs.codec import ADM, Codec, Fit
from models.codecs.palette import Palette
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_files import VqganFiles
from models.files.network import KeyMap, Network, fitting_config
from models.files.tensors import Rules
from models.files.tokenizer_file import load_tokenizer
from models.files.weights import HUB_TOKENIZER, all_of, read_config
from models.target import TargetModel
from models.targets.llama import decoder_keys, llama_spec
from models.targets.prompts import ImageCodes, Prompts, Words
from models.targets.text_encoder import TextEncoder
from models.transformer import Transformer

if TYPE_CHECKING:
    from models.target import Images


@dataclass(frozen=True)
class Checked:
    """A part whose files are right."""

    text: str
    bytes: int = 0  # that the part takes in memory


@dataclass(frozen=True)
class Together:
    """Parts that fit together for an image."""

    text: str
    grid: ImageGrid  # of an image's tokens
    codes: int  # different image tokens
    caption: int  # tokens of CAPTION's prompt


Part = TypeVar("Part")
Texts = Words | TextEncoder  # what reads them
CAPTION = "A man riding a wave on top of a surfboard."  # as long as most of COCO's
Check = Callable[[Path, TargetOptions], Checked]  # of a checkpoint's folder; ValueError for a fault


class Family(ABC):
    """A family of targets in its public files.

    A family says what its config.json means (`spec`, `codes`), where its image tokenizer is
    (`image_files`) and how its prompts look (`prompts`, `frame`). All else has a default.
    """

    name: str
    prompts: type[Prompts]
    vocabulary: type[Words] = Words
    fit: Fit = ADM  # how pictures are brought to the model's size
    decoded = True  # whether a network makes pixels of its codes
    # names of the parts in reports, and flags that name their files
    text_part, image_part = "text tokenizer", "image tokenizer"
    text_flag: str | None = None
    image_flag: str | None = None
    frame: tuple[str, ...] = ()  # names of the tokens around a prompt's text
    tags = ""  # pattern of added tokens that stand for text in a prompt
    decoder = "model."  # prefix of the transformer's public keys
    ignored: tuple[str, ...] = ()  # prefixes of keys that are not its weights
    renames: Rules = ()  # keys of other layouts -> this one's

    @abstractmethod
    def spec(self, config: dict) -> TransformerSpec:
        """Return the transformer's sizes."""

    def codes(self, config: dict) -> ImageVocab:
        """Return as many ids as config.json says that there are codes, whichever they are."""
        raise NotImplementedError

    def keys(self, config: dict, spec: TransformerSpec, vocab: ImageVocab) -> KeyMap:
        """Return public keys -> parameters of a transformer whose head scores `vocab` alone."""
        return decoder_keys(spec, vocab, self.decoder)

    def network(self, config: dict, vocab: ImageVocab | None = None) -> Network:
        """Return the network of a config.json, with a head for `vocab` or `codes`, and its keys."""
        spec, vocab = self.spec(config), vocab or self.codes(config)
        with torch.device("meta"):
            module = Transformer(spec, vocab.size)
        return Network(module, self.keys(config, spec, vocab), self.ignored, renames=self.renames)

    def words(self, folder: Path, options: TargetOptions) -> Texts:
        """Return the text tokenizer, or the encoder of families whose prompts are not tokens."""
        path = folder / HUB_TOKENIZER
        return self.vocabulary(load_tokenizer(path, self.tags), path, self.frame)

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        """Return where the image tokenizer's weights are."""
        raise NotImplementedError

    def tokenizer(self, folder: Path, options: TargetOptions) -> ImageTokenizer | Palette:
        """Return the image tokenizer, by default that in `image_files`."""
        return self.image_files(folder, options).load(options.device)

    def images(self, folder: Path, options: TargetOptions) -> "Images":
        """Return what makes pixels of codes."""
        return self.tokenizer(folder, options)

    def image_codes(self, folder: Path, options: TargetOptions) -> ImageCodes:
        """Return what the image tokenizer makes, without its weights."""
        sizes = self.image_files(folder, options).config
        return ImageCodes(sizes.n_embed, sizes.side, sizes.downsampling)

    def drafter(self, config: dict, target: TransformerSpec) -> TransformerSpec:
        """Return the sizes in a drafter's config.json, with room for sequences of the target."""
        # as in published EAGLE heads, layer 0 has no norm before its attention
        return replace(llama_spec(config), max_positions=target.max_positions, first_norm=False)

    def entries(self, config: dict) -> dict:
        """Return the entries that a new drafter takes over, in one flat table.

        It is a layer of Llama, with heads of hidden / heads channels.
        """
        return dict(config)

    def finish(self, network: nn.Module, prompts: Prompts) -> Transformer:
        """Return the transformer of a network whose weights have been read."""
        assert isinstance(network, Transformer), "else a family says which of its parts it is"
        return network

    def load(self, folder: Path, options: TargetOptions) -> TargetModel:
        """Read a checkpoint folder."""
        config, spec = fitting_config(folder, self.spec)
        # first, so that their faults are told before minutes of reading weights
        images, prompts = self._parts(folder, spec, options, self.images)
        network = self.network(config, prompts.vocab)
        network.fill(folder, options.dtype, options.device)
        transformer = self.finish(network.module, prompts)
        return TargetModel(transformer, prompts, images, self.drafter)

    def codec(self, folder: Path, options: TargetOptions) -> Codec:
        """Return what a checkpoint does with pictures and captions, without its transformer."""
        spec = self._config(folder)[1]
        images, prompts = self._parts(folder, spec, options, self.tokenizer)
        # the row of the caption alone: a negative prompt is no part of the training data
        count = prompts.vocab.size
        return Codec(images, prompts.grid, count, lambda text: len(prompts.row(text)), self.fit)

    def codebook(self, folder: Path, options: TargetOptions) -> Tensor:
        """Return the latents of the image codes, (codes, width), fp32."""
        return self.tokenizer(folder, options).codebook

    @property
    def parts(self) -> dict[str, tuple[Check, str | None]]:
        """The checks of all but the transformer, by name, and the flags that name their files."""
        return {
            self.text_part: (self.check_text, self.text_flag),
            self.image_part: (self.check_images, self.image_flag),
        }

    def check_text(self, folder: Path, options: TargetOptions) -> Checked:
        """Check that the text tokenizer has the tokens around a prompt."""
        return Checked(str(self.words(folder, options)))

    def check_images(self, folder: Path, options: TargetOptions) -> Checked:
        """Check that the image tokenizer's weights fit its network, which computes in fp32."""
        files = self.image_files(folder, options)
        count = sum(parameter.numel() for parameter in files.network().module.parameters())
        sizes = files.config
        text = f"{files.source}: {sizes.n_embed} codes, {sizes.resolution} x {sizes.resolution} "
        return Checked(f"{text}pixels, {count / 1e6:.1f} M parameters", 4 * count)

    def compatible(self, folder: Path, options: TargetOptions) -> Together:
        """Check that parts and config.json, right in themselves, fit together for an image."""
        words, spec = self.words(folder, options), self._config(folder)[1]
        prompts = self._prompts(words, folder, spec, options)
        grid, room, shortest = prompts.grid, prompts.room, prompts.shortest
        ends = "" if grid.row_end is None else f" and {grid.rows} row ends"
        image = f"an image is {grid} tokens{ends} of {spec.max_positions:,} positions"
        if shortest > room:
            left = f"leaves {room:,} for prompts, of which the shortest has {shortest:,}"
            raise ValueError(f"{folder}: config.json: {image} and {left}")
        parts = "text tokenizer, image tokenizer and config.json fit together"
        return Together(
            f"{parts}; {image}: prompts of up to {room:,} tokens",
            grid=grid,
            codes=prompts.vocab.size,
            caption=min(room, max(shortest, len(prompts.ids(CAPTION)))),
        )

    def _config(self, folder: Path) -> tuple[dict, TransformerSpec]:
        config = read_config(folder)
        with refusing(str(folder)):
            return config, self.spec(config)

    def _parts(
        self,
        folder: Path,
        spec: TransformerSpec,
        options: TargetOptions,
        images_of: Callable[[Path, TargetOptions], Part],
    ) -> tuple[Part, Prompts]:
        words, images = all_of(
            lambda: self.words(folder, options), lambda: images_of(folder, options)
        )
        return images, self._prompts(words, folder, spec, options)

    def _prompts(
        self,
        words: Texts,
        folder: Path,
        spec: TransformerSpec,
        options: TargetOptions,
    ) -> Prompts:
        assert isinstance(words, Words)
        with refusing(str(folder)):
            return self.prompts(words, self.image_codes(folder, options), spec, options)
