"""An image round by round: what is decided, and the tree that the round drafted."""

from collections.abc import Iterator, Sequence

import torch
from PIL import Image

from adt_tree.output import Draft, StreamStep
from adt_tree.weights import Weights
from decoding.images import ImageState
from decoding.round import RoundResult
from runs.drawing import DrawnStep


class Seen:
    """What the engine's watcher saw of the latest round of a single image, on the host."""

    def __call__(self, states: Sequence[ImageState | None], result: RoundResult) -> None:
        (state,), verdict, tree = states, result.verdict, result.tree
        self.tokens = torch.tensor(state.codes)
        self.seconds = state.seconds + state.seconds_prefill
        self.forwards = state.rounds + 1
        accepted = int(verdict.accepted[0])
        path = verdict.path[0, 1 : accepted + 1].tolist()  # without the root
        parents, depths = tree.parents[0].tolist(), tree.depths[0].tolist()
        kept = tree.present[0].nonzero()[:, 0].tolist()
        # absent nodes pad trees of a batch to one size; without them the others get new numbers
        numbers = {node: number for number, node in enumerate(kept)}
        self.draft = Draft(
            # `decided` already counts the round's accepted + 1 tokens; the root is the one before.
            root=state.decided - accepted - 2,
            parents=tuple(numbers[parents[node]] for node in kept),
            depths=tuple(depths[node] for node in kept),
            accepted=tuple(numbers[node] for node in path),
        )


def stream_steps(steps: Iterator[DrawnStep], seen: Seen, weights: Weights) -> Iterator[StreamStep]:
    """Yield the rounds of one image, of which `seen` is the watcher."""
    for step in steps:
        (stats,), seconds, paint = step.rounds, seen.seconds, weights.paint
        for drawn in step.finished:
            seconds = drawn.image.seconds
            picture = Image.fromarray(drawn.pixels)  # a painter may have taken long for it
            # The loop binds `picture` once, as there is one image: the lambda keeps the right one.
            paint = lambda tokens: picture  # noqa: B023, E731
        yield StreamStep(
            round=stats.round,
            position=stats.position,
            accepted=stats.accepted,
            tokens=seen.tokens,
            total=weights.target.grid.tokens,
            forwards=seen.forwards,
            seconds=seconds,
            draft=seen.draft,
            paint=paint,
        )
