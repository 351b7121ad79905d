"""What a pipeline returns: images and their figures, rounds of a stream, tables of methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from decoding.images import ImageCost, ImageState
from decoding.round import RoundResult
from runs.drawing import Drawn


@dataclass(frozen=True)
class ImageStats(ImageCost):
    """What an image is and what it cost; its `seconds` are of decoding, prefill included."""

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


@dataclass(frozen=True)
class Draft:
    """The tree that a round drafted; node 0 is its root, the last token decided before."""

    root: int  # the root's position in the image
    parents: tuple[int, ...]  # of every node; the root's own is 0
    # distance from the root; the node drafts the token of position `root + depth`
    depths: tuple[int, ...]
    accepted: tuple[int, ...]  # nodes, from the root's child on; none in plain decoding


@dataclass(frozen=True)
class StreamStep:
    """One round of an image that is being decoded."""

    round: int  # its number, from 0
    position: int  # of the first token that it decided
    accepted: int  # accepted draft tokens
    tokens: Tensor = field(repr=False)  # (decided,) all codes so far, on the CPU
    total: int  # tokens of the whole image
    forwards: int  # of the image so far, prefill included
    seconds: float  # likewise
    draft: Draft = field(repr=False)  # the round's tree
    paint: Callable[[Tensor], Image.Image] = field(repr=False, compare=False)

    @classmethod
    def of(cls, state: ImageState, result: RoundResult, paint: Callable) -> "StreamStep":
        """Return the round of a single image that its state has just counted."""
        tree, accepted = result.tree, int(result.verdict.accepted[0])
        position = state.decided - accepted - 1
        path = result.verdict.path[0, 1 : accepted + 1].tolist()  # without the root
        parents, depths = tree.parents[0].tolist(), tree.depths[0].tolist()
        kept = tree.present[0].nonzero()[:, 0].tolist()
        # absent nodes pad trees of a batch to one size; without them the others get new numbers
        numbers = {node: number for number, node in enumerate(kept)}
        return cls(
            round=state.rounds - 1,
            position=position,
            accepted=accepted,
            tokens=torch.tensor(state.codes),
            total=state.grid.tokens,
            forwards=state.rounds + 1,
            seconds=state.seconds + state.seconds_prefill,
            draft=Draft(
                root=position - 1,
                parents=tuple(numbers[parents[node]] for node in kept),
                depths=tuple(depths[node] for node in kept),
                accepted=tuple(numbers[node] for node in path),
            ),
            paint=paint,
        )

    @property
    def decided(self) -> int:
        """Tokens decided so far."""
        return len(self.tokens)

    @property
    def finished(self) -> bool:
        """Whether this was the image's last round."""
        return self.decided == self.total

    @property
    def accepted_length(self) -> float:
        """Mean tokens per round so far."""
        return (self.decided - 1) / (self.round + 1)

    # Works on a frozen class: cached_property writes into __dict__, not by __setattr__.
    @cached_property
    def image(self) -> Image.Image:
        """The image so far, grey where nothing is decided; computed when it is asked for."""
        return self.paint(self.tokens)


@dataclass(frozen=True)
class MethodTable:
    """Methods compared on the same prompts and seeds; prints as a table."""

    rows: list[Mapping[str, Any]]  # all figures of each method by name, as in benchmark.json
    markdown: str

    def __repr__(self) -> str:
        return self.markdown

    _repr_markdown_ = __repr__
