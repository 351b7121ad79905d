"""What a pipeline returns: images and their figures, tables of methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from PIL import Image
from torch import Tensor

from decoding.images import ImageCost
from runs.drawing import Drawn
from support.progress import plural


@dataclass(frozen=True)
class ImageStats(ImageCost):
    """What an image is and what it cost; its `seconds` are of decoding, prefill included.

    Its `seed` repeats it in a list alone: `pipe(stats.prompt, seed=[stats.seed])`.
    """

    prompt: str
    seed: int  # its own, which follows from the call's seed, the prompt and the image's number
    tokens: int
    accepted_length: float  # mean tokens decided per round, the bonus token included (tau)
    forwards: int  # forward passes of the target, the prompt's included
    seconds_decode: float  # of the VQ decoder

    @property
    def tokens_per_second(self) -> float:
        """Image tokens per second of decoding."""
        return self.tokens / self.seconds

    @classmethod
    def of(cls, drawn: Drawn) -> "ImageStats":
        image = drawn.image
        return cls(
            prompt=image.job.prompt,
            seed=image.job.seed,
            tokens=len(image.codes),
            accepted_length=image.tau,
            forwards=image.target_forwards,
            seconds_decode=drawn.seconds_decode,
            **{cost.name: getattr(image, cost.name) for cost in fields(ImageCost)},
        )


@dataclass(frozen=True)
class ImageOutput:
    """The images of a call: prompt by prompt, the images of a prompt next to each other."""

    images: list[Image.Image]  # empty with output_type="tokens"
    tokens: Tensor  # (images, tokens) image codes, on the CPU
    stats: list[ImageStats]  # one per image

    def __repr__(self) -> str:
        count, tokens = plural(len(self), "image"), self.tokens.shape[1]
        return f"ImageOutput({count} of {tokens} tokens: .images, .tokens, .stats)"

    def __len__(self) -> int:
        return len(self.stats)

    def __getitem__(self, number: int) -> Image.Image:
        return self.images[number]


@dataclass(frozen=True)
class MethodTable:
    """Methods compared on the same prompts and seeds; prints as a table."""

    rows: Sequence[Mapping[str, Any]]  # all figures of each method by name, as in benchmark.json
    markdown: str

    def __repr__(self) -> str:
        return self.markdown

    _repr_markdown_ = __repr__
