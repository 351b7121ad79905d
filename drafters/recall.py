"""Recall: stale predictions, weighted by how similar the tokens are that they were made after.

A verified tree holds the target's predictions after many tokens that it did not choose: the other
candidates for the same position. After a token much like the chosen one, the target predicts much
the same. So the distribution after a candidate is recalled from all nodes of the last tree at its
position (picture in `drafters.similarity`). Siblings of an accepted token are then worth verifying
for what they predict. All levels of a tree are recalled at once (`drafters.window`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from configs.fields import settled
from configs.methods import fitted_numbers
from decoding.round import Round, RoundResult, TreeShape
from decoding.stopwatch import Stopwatch
from drafters.drafting import Drafting
from drafters.jacobi import JacobiDrafter
from drafters.similarity import NO_NODE, LastTree, SimilarNodes, UnitEmbeddings, sharpness_of
from drafters.window import WindowDrafter, WindowPass, window_suffixes
from models.base import PromptRows
from models.target import TargetModel
from support.compiler import fused
from support.constants import arange

CANDIDATES = 5  # per position; 8 accept no more
SHARE = 0.35  # in a mixture, of predictions by position; hits change little from 0.3 to 0.5
_LEAST = -60.0  # log-probability of codes that top-k or top-p cuts, so that means stay finite


@dataclass(frozen=True)
class RecallNumbers:
    """Pairs a, b that say how far to go with recalled predictions, by the similarity m."""

    share: tuple[float, float]  # in a mixture with a drafter's predictions: a + b m, within [0, 1]
    mixed_sharpness: tuple[float, float]  # `Predictions.sharpness` of mixtures: exp(a + b m^3)
    sharpness: tuple[float, float]  # the same without a drafter

    @staticmethod
    def of(numbers: Sequence[float]) -> "RecallNumbers":
        """Return the numbers in their order."""
        share, mixed, alone = ((numbers[at], numbers[at + 1]) for at in (0, 2, 4))
        return RecallNumbers(share, mixed, alone)


# Fitted to closed-loop rounds of the shipped model; the sharpness over all codes.
FITTED_TO_TINY = RecallNumbers((-0.34, 1.32), (0.0, 1.66), (-0.97, 2.56))


class RecallDrafter(WindowDrafter, JacobiDrafter):
    """Recalls predictions by similarity; at positions without nodes they are Jacobi's."""

    def __init__(
        self,
        target: TargetModel,
        guess: str,
        largest: TreeShape,
        numbers: RecallNumbers = FITTED_TO_TINY,
    ):
        super().__init__(target, guess, largest)
        self.numbers, self.candidates = numbers, min(CANDIDATES, self.codes)
        self.embeddings = UnitEmbeddings.of(target)

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        super().open(images, slots, watch)
        size = images, 1 + self.largest.nodes, self.codes
        self.last = LastTree(*size[:2], self.device)
        self.predictions = torch.full(size, _LEAST, dtype=self.dtype, device=self.device)

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        super().prefill(image, prompt, hidden, code)
        self.last.begin(image, code)

    def source(self, round: Round) -> "RecalledPasses":
        self.passes = RecalledPasses(self, round)
        return self.passes

    def mixing(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return how to mix the window with a drafter's predictions, position by position.

        The sharpness and the recalled share of candidates (images, positions, candidates), and the
        share at other tokens (images, positions, 1).
        """
        similarity, has_node = self.window.result.similarity, self.passes.similar.has_node
        # of the same type, whatever the caller's default is
        by_position = SHARE * (self.passes.position <= self.reached)[..., None].to(similarity.dtype)
        none = torch.full_like(similarity[..., :1], NO_NODE)
        share, other = (
            share_of(values, self.numbers.share, has_node[..., None], by_position)
            for values in (similarity, none)
        )
        return sharpness_of(similarity, *self.numbers.mixed_sharpness), share, other

    def update(self, result: RoundResult) -> None:
        self.last.update(result)
        self.predictions[:, : result.tree.nodes + 1] = result.log_p.clamp(min=_LEAST)
        self.drafted = None  # distributions after all candidates take memory
        super().update(result)


class RecalledPasses:
    """The passes over a round's window, which recall predictions after its candidates."""

    def __init__(self, drafter: RecallDrafter, round: Round):
        self.drafter, last = drafter, drafter.last
        self.position = round.position(arange(round.shape.reach, drafter.device))
        before = self.position - 1, last.positions, last.suffixes
        self.similar = SimilarNodes.at(*before, drafter.embeddings)
        self.repeated = self.similar.repeat(drafter.candidates)
        self.by_position = drafter.ahead(round).clamp(min=_LEAST)  # (images, positions, vocab)

    def first(self) -> tuple[Tensor, None]:
        return self.by_position, None

    def read(self, codes: Tensor, states: Tensor | None) -> WindowPass:
        drafter, size = self.drafter, codes.shape[1:]
        suffixes = window_suffixes(codes, drafter.last.recent).flatten(1, 2)
        weights, similarity = self.repeated.weigh(suffixes)
        log_q = _recalled(
            weights.unflatten(1, size), drafter.predictions, self.similar.has_node, self.by_position
        )
        similarity = similarity.unflatten(1, size)
        return WindowPass(
            codes, log_q, similarity, sharpness_of(similarity, *drafter.numbers.sharpness)
        )


@fused
def _recalled(
    weights: Tensor, predictions: Tensor, has_node: Tensor, by_position: Tensor
) -> Tensor:
    # means of logarithms are a geometric mean, which does not sum to 1
    recalled = (weights.flatten(1, 2) @ predictions).view(*weights.shape[:3], -1)
    log_q = torch.where(has_node[..., None, None], recalled, by_position[:, :, None])
    return log_q.log_softmax(-1)


@fused
def share_of(
    similarity: Tensor, numbers: tuple[float, float], has_node: Tensor, by_position: Tensor
) -> Tensor:
    """Return shares in a mixture: by similarity at positions with nodes, else `by_position`."""
    offset, slope = numbers
    return torch.where(has_node, (offset + slope * similarity).clamp(0, 1), by_position)


def recall_drafter(parts: Drafting) -> RecallDrafter:
    """Build the drafter without weights that recalls predictions by similarity of tokens."""
    text = parts.method.recall_numbers
    numbers = FITTED_TO_TINY if text is None else RecallNumbers.of(fitted_numbers(text))
    return RecallDrafter(parts.target, settled(parts.method.guess), parts.largest, numbers)
