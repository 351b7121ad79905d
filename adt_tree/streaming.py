"""An image round by round: what is decided, and the tree that the round drafted."""

from collections.abc import Callable, Iterator, Sequence

import torch
from PIL import Image
from torch import Tensor

from adt_tree.output import Draft, StreamStep
from adt_tree.weights import Weights
from configs.model import EngineSettings
from decoding.images import ImageState, Job
from decoding.round import RoundResult
from runs.drawing import Drawn, DrawnStep


class _Seen:
    """What the engine's watcher saw of the latest round of a single image, on the host."""

    def __call__(self, states: Sequence[ImageState | None], result: RoundResult) -> None:
        """Copy what the round decided and drafted."""
        (state,), verdict = states, result.verdict
        accepted = int(verdict.accepted[0])
        self.tokens = torch.tensor(state.codes)
        self.seconds = state.seconds + state.seconds_prefill
        self.forwards = state.rounds + 1
        root = state.decided - accepted - 2
        self.draft = host_draft(result, root, verdict.path[0, 1 : accepted + 1].tolist())


def host_draft(result: RoundResult, root: int, path: Sequence[int]) -> Draft:
    """Return the tree of the first image without its absent nodes.

    root: the position of its root; path: the accepted nodes, the root not among them.
    """
    tree = result.tree
    columns = torch.stack([tree.parents[0], tree.depths[0], tree.present[0].long()]).tolist()
    kept = [node for node, present in enumerate(columns[2]) if present]
    # absent nodes pad trees of a batch to one size; without them the others get new numbers
    numbers = {node: number for number, node in enumerate(kept)}
    parents = tuple(numbers[columns[0][node]] for node in kept)
    depths = tuple(columns[1][node] for node in kept)
    return Draft(root, parents, depths, tuple(numbers[node] for node in path))


def stream_steps(weights: Weights, settings: EngineSettings, job: Job) -> Iterator[StreamStep]:
    """Return the rounds of one image; errors of the settings come at once."""
    seen = _Seen()
    return _steps(weights.draw(settings, [job], seen), seen, weights)


def _steps(steps: Iterator[DrawnStep], seen: _Seen, weights: Weights) -> Iterator[StreamStep]:
    spent, paint = 0.0, weights.paint
    for step in steps:
        (stats,) = step.rounds
        for drawn in step.finished:
            spent, paint = drawn.image.seconds, _finished(drawn)
        yield StreamStep(
            round=stats.round,
            position=stats.position,
            accepted=stats.accepted,
            tokens=seen.tokens,
            total=weights.target.grid.tokens,
            forwards=seen.forwards,
            seconds=spent or seen.seconds,
            draft=seen.draft,
            paint=paint,
        )


def _finished(drawn: Drawn) -> Callable[[Tensor], Image.Image]:
    """Return what shows a finished image, which a painter may have taken long for."""
    return lambda tokens: Image.fromarray(drawn.pixels)
