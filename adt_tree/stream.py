"""An image round by round: what is decided, and the tree that the round drafted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from PIL import Image
from torch import Tensor

from adt_tree.weights import Weights
from configs.model import EngineSettings
from decoding.engine import StepStats
from decoding.images import ImageState, Job
from decoding.round import RoundResult
from runs.drawing import Drawn


@dataclass(frozen=True)
class Draft:
    """The tree that a round drafted; node 0 is its root, the last token decided before."""

    root: int  # the root's position in the image
    parents: tuple[int, ...]  # of every node; the root's own is 0
    # distance from the root; the node drafts the token of position `root + depth`
    depths: tuple[int, ...]
    accepted: tuple[int, ...]  # nodes, from the root's child on; none in plain decoding


@dataclass(frozen=True)
class Painter:
    """Paints with a model, which a pickled step leaves behind."""

    weights: Weights | None

    def __call__(self, codes: Tensor) -> Image.Image:
        """Return the image of its first codes; a RuntimeError without a model."""
        if self.weights is None:
            raise RuntimeError(
                "a pickled or copied StreamStep has no model to paint with; read its .image "
                "before, or paint its .tokens where the model is"
            )
        return self.weights.paint(codes)

    def __reduce__(self) -> tuple[type["Painter"], tuple[None]]:
        return Painter, (None,)


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


def streamed(weights: Weights, settings: EngineSettings, jobs: list[Job]) -> Iterator[StreamStep]:
    """Return the rounds of a single job's image; errors of settings are raised at once."""
    seen: list[StreamStep] = []  # the latest round
    paint = Painter(weights)

    def watch(states: Sequence[ImageState | None], result: RoundResult) -> None:
        assert states[0] is not None  # there is one image
        seen.append(StreamStep.of(states[0], result, paint))

    return _with_pictures(weights.draw(settings, jobs, watch), seen)


def _with_pictures(
    steps: Iterator[StepStats[Drawn]], seen: list[StreamStep]
) -> Iterator[StreamStep]:
    for step in steps:
        shown = seen.pop()
        for drawn in step.finished:  # its picture is there, and a painter may have taken long
            vars(shown)["image"] = Image.fromarray(drawn.pixels)
        yield shown
