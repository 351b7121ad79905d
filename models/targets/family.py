"""A family of targets: how its files are opened, and what `inspect` looks at in them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from models.base import ImageGrid, ImageVocab, TargetOptions, TransformerSpec
from models.codecs.codec import ADM, Codec, Fit
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_files import VqganFiles
from models.files.gather import all_of
from models.files.names import HUB_TOKENIZER
from models.files.network import Network
from models.files.sizes import fitting_config
from models.files.tokenizer_file import load_tokenizer
from models.files.weights import naming
from models.target import TargetModel
from models.targets.llama import llama_spec
from models.targets.prompts import ImageCodes, Prompts, Words
from models.transformer import Transformer
from support.json_files import read_object


@dataclass(frozen=True)
class Checked:
    """What a check has found."""

    text: str
    bytes: int = 0  # that the part takes in memory
    # known once all parts fit together
    grid: ImageGrid | None = None  # of an image's tokens
    shortest: int = 0  # tokens of the longest row of a prompt without text


Check = Callable[[Path, TargetOptions], Checked]  # of a checkpoint's folder; ValueError for a fault


@dataclass(frozen=True)
class Part:
    """A part of a target next to its transformer. flag: that names its files, if one does."""

    check: Check
    flag: str | None = None


class Family(ABC):
    """A family of targets in its public files.

    A family says what its config.json means (`spec`, `network`), where its image tokenizer is
    (`image_files`) and how its prompts look (`prompts`, `frame`). All else has a default.
    """

    name: str
    prompts: type[Prompts]
    fit: Fit = ADM  # how pictures are brought to the model's size
    decoded = True  # whether its image tokenizer makes pixels
    # names of the parts in reports, and flags that name their files
    text_part, image_part = "text tokenizer", "image tokenizer"
    text_flag: str | None = None
    image_flag: str | None = None
    frame: tuple[str, ...] = ()  # names of the tokens around a prompt's text

    @abstractmethod
    def spec(self, config: dict) -> TransformerSpec:
        """Return the transformer's sizes; ValueError names an entry that cannot be used."""

    @abstractmethod
    def network(self, config: dict, vocab: ImageVocab | None = None) -> Network:
        """Return the network of a config.json and its public keys; errors as `spec`.

        vocab: ids of the image codes; None: as many as config.json says, whichever they are.
        """

    def words(self, folder: Path, options: TargetOptions) -> Words:
        """Return the text tokenizer; ValueError if it is missing, damaged or lacks a token."""
        path = folder / HUB_TOKENIZER
        return Words(load_tokenizer(path), path, self.frame)

    def image_files(self, folder: Path, options: TargetOptions) -> VqganFiles:
        """Return where the image tokenizer's weights are; ValueError if they are nowhere."""
        raise NotImplementedError

    def images(self, folder: Path, options: TargetOptions) -> ImageTokenizer:
        """Return the image tokenizer; ValueError names what is missing, damaged or different."""
        return self.image_files(folder, options).load(options.device)

    def image_codes(self, folder: Path, options: TargetOptions) -> ImageCodes:
        """Return what the image tokenizer makes, without its weights; errors as `images`."""
        sizes = self.image_files(folder, options).config
        return ImageCodes(sizes.n_embed, sizes.grid[0], sizes.downsampling)

    def drafter(self, config: dict, target: TransformerSpec) -> TransformerSpec:
        """Return the sizes in a drafter's config.json, with room for sequences of the target.

        As in published EAGLE heads, layer 0 has no norm before its attention. Errors as `spec`.
        """
        return replace(llama_spec(config), max_positions=target.max_positions, first_norm=False)

    def entries(self, config: dict) -> dict:
        """Return the entries that a new drafter takes over, in one flat table."""
        return dict(config)

    def pictured(self, folder: Path) -> bool:
        """Return whether images become pictures; otherwise they stay tokens."""
        return True

    def finish(self, network: nn.Module, prompts: Prompts) -> Transformer:
        """Return the transformer of a network whose weights have been read."""
        return network

    def load(self, folder: Path, options: TargetOptions) -> TargetModel:
        """Read a checkpoint folder; ValueError names what is missing, damaged or different."""
        config, spec = fitting_config(folder, self.spec)
        # first, so that their faults are told before minutes of reading weights
        images, prompts = self._parts(folder, spec, options)
        network = self.network(config, prompts.vocab)
        network.fill(folder, options.dtype, options.device)
        transformer = self.finish(network.module, prompts)
        return TargetModel(self.name, transformer, prompts, images, self.drafter)

    def codec(self, folder: Path, options: TargetOptions) -> Codec:
        """Return what a checkpoint does with pictures and captions, without its transformer.

        Arguments and errors as `load`.
        """
        images, prompts = self._parts(folder, self._config(folder)[1], options)
        # the row of the caption alone: a negative prompt is no part of the training data
        count = images.config.n_embed
        return Codec(images, prompts.grid, count, lambda text: len(prompts.row(text)), self.fit)

    def codebook(self, folder: Path, options: TargetOptions) -> Tensor:
        """Return the latents of the image codes, (codes, width), fp32."""
        return self.images(folder, options).codebook

    @property
    def parts(self) -> Mapping[str, Part]:
        """The checks of the parts, by name; what they look at is not the transformer's."""
        return {
            self.text_part: Part(self.check_text, self.text_flag),
            self.image_part: Part(self.check_images, self.image_flag),
        }

    def check_text(self, folder: Path, options: TargetOptions) -> Checked:
        """Check that the text tokenizer has the tokens around a prompt."""
        return Checked(str(self.words(folder, replace(options, download=False))))

    def check_images(self, folder: Path, options: TargetOptions) -> Checked:
        """Check that the image tokenizer's weights are there and fit its network, by their headers.

        It computes in fp32.
        """
        files = self.image_files(folder, replace(options, download=False))
        count = sum(parameter.numel() for parameter in files.network().module.parameters())
        sizes = files.config
        text = f"{files.source}: {sizes.n_embed} codes, {sizes.resolution} x {sizes.resolution} "
        return Checked(f"{text}pixels, {count / 1e6:.1f} M parameters", 4 * count)

    def compatible(self, folder: Path, options: TargetOptions) -> Checked:
        """Check that parts and config.json, right in themselves, fit together for an image."""
        options = replace(options, download=False)
        words, spec = self.words(folder, options), self._config(folder)[1]
        prompts = self._prompts(words, folder, spec, options)
        grid = prompts.grid
        ends = "" if grid.row_end is None else f" and {grid.rows} row ends"
        text = "text tokenizer, image tokenizer and config.json fit together; an image is"
        return Checked(f"{text} {grid} tokens{ends}", 0, grid, prompts.shortest)

    def _config(self, folder: Path) -> tuple[dict, TransformerSpec]:
        config = read_object(folder / "config.json")
        with naming(folder):
            return config, self.spec(config)

    def _parts(
        self, folder: Path, spec: TransformerSpec, options: TargetOptions
    ) -> tuple[ImageTokenizer, Prompts]:
        words, images = all_of(
            lambda: self.words(folder, options), lambda: self.images(folder, options)
        )
        return images, self._prompts(words, folder, spec, options)

    def _prompts(
        self, words: Words, folder: Path, spec: TransformerSpec, options: TargetOptions
    ) -> Prompts:
        with naming(folder):
            return self.prompts(words, self.image_codes(folder, options), spec, options)
