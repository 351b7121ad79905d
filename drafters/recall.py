"""Stale predictions, weighed by how similar the tokens are that they were made after.

A verified tree holds the target's predictions after many tokens that it did not choose: the other
candidates for the same place. After a token much like the chosen one, the target predicts much the
same. So the distribution after a node is recalled from all nodes of the last tree that stand at its
position, each weighed by the similarity of its last tokens to the node's own (kernel regression,
Nadaraya 1964). Siblings of an accepted token are then worth verifying for what they predict.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.device import Stopwatch, arange
from decoding.drafter import Draft
from decoding.round import Round, RoundResult, TreeShape
from decoding.tree import GrowingTree
from drafters.jacobi import JacobiDrafter, Recalled
from drafters.similarity import REACH, Directions, LastTree, Recollection, trust_in
from models.base import PromptRows
from models.target import TargetModel
from support.compiler import fused

# of a round: what its levels recall from, and the predictions (images, levels, vocab) by position
Remembered = tuple[Round, Recollection, Tensor]
_LEAST = -60.0  # log-probability of codes that top-k or top-p cuts, so that means stay finite


@dataclass(frozen=True)
class RecallNumbers:
    """Pairs a, b that weigh what is recalled by m, the similarity of the most similar node."""

    share: tuple[float, float]  # in a mixture: a + b m, cut to [0, 1]
    trust_mixed: tuple[float, float]  # factor on the calibration of mixtures: exp(a + b m^3)
    trust_alone: tuple[float, float]  # the same of what is recalled alone

    @staticmethod
    def of(numbers: Sequence[float]) -> "RecallNumbers":
        """Return the numbers in their order."""
        return RecallNumbers(*(tuple(numbers[at : at + 2]) for at in (0, 2, 4)))


# Fitted to closed-loop rounds of the shipped model.
FITTED_TO_TINY = RecallNumbers((-0.34, 1.32), (0.0, 1.66), (-0.97, 2.56))


class RecallDrafter(JacobiDrafter):
    """Recalls predictions by similarity where the last tree has any, and as Jacobi elsewhere."""

    def __init__(
        self,
        target: TargetModel,
        guess: str,
        largest: TreeShape,
        numbers: RecallNumbers = FITTED_TO_TINY,
    ):
        super().__init__(target, guess, largest)
        self.numbers = numbers
        self.directions = Directions.of(target)

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        super().open(images, slots, watch)
        size = images, 1 + self.largest.nodes, self.codes
        self.last = LastTree(*size[:2], self.device)
        self.predictions = torch.full(size, _LEAST, dtype=self.dtype, device=self.device)
        self._remembered: Remembered | None = None

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        super().prefill(image, prompt, hidden, code)
        self.last.begin(image, code)

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Draft:
        log_q, similarity = self._recall(tree, picked, round)
        return Draft(log_q, trust_in(similarity, *self.numbers.trust_alone))

    def recall(self, tree: GrowingTree, picked: Tensor, round: Round) -> Recalled:
        log_q, similarity = self._recall(tree, picked, round)
        level = slice(tree.height, tree.height + 1)
        _, recollection, _ = self._remember(round)
        reached, by_position = recollection.known, self.ahead(round).share
        share = share_of(similarity, self.numbers.share, reached[:, level], by_position[:, level])
        return Recalled(Draft(log_q, trust_in(similarity, *self.numbers.trust_mixed)), share)

    def update(self, result: RoundResult) -> None:
        self.last.update(result)
        self.predictions[:, : result.tree.nodes + 1] = result.log_p.clamp(min=_LEAST)
        super().update(result)

    def _remember(self, round: Round) -> Remembered:
        """Return what this round's levels recall from."""
        if self._remembered is None or self._remembered[0] is not round:
            # of the nodes to expand
            positions = round.position(arange(round.shape.reach, self.device) - 1)
            nodes = self.last.positions, self.last.lineage
            recollection = Recollection.at(positions, *nodes, self.directions)
            self._remembered = round, recollection, self.ahead(round).log_q.clamp(min=_LEAST)
        return self._remembered

    def _recall(self, tree: GrowingTree, picked: Tensor, round: Round) -> tuple[Tensor, Tensor]:
        """Return predictions (images, k, vocab), and similarities as `Recollection.after`.

        Where no node of the last tree stands they are those by position alone.
        """
        _, recollection, by_position = self._remember(round)
        level = slice(tree.height, tree.height + 1)
        here = recollection.of(level)
        weights, similarity = here.after(self._follow(tree, picked))
        return _predicted(weights, self.predictions, here.known, by_position[:, level]), similarity

    def _follow(self, tree: GrowingTree, picked: Tensor) -> Tensor:
        """Return the last tokens (images, k, REACH) of nodes of the newest level, their own first.

        Their parents are what the last call expanded.
        """
        if tree.height == 0:
            self._path = self.last.recent[:, None]
            return self._path
        self._path = longer(self._path, tree.newest.tokens, picked, tree.newest.children)
        return self._path


@fused
def _predicted(weights: Tensor, predictions: Tensor, known: Tensor, by_position: Tensor) -> Tensor:
    # means of logarithms are a geometric mean, which does not sum to 1
    log_q = torch.where(known[..., None], weights @ predictions, by_position)
    return log_q.log_softmax(-1)


@fused
def share_of(
    similarity: Tensor, numbers: tuple[float, float], reached: Tensor, by_position: Tensor
) -> Tensor:
    """Return the share (images, k) in a mixture: by similarity where the last tree has nodes."""
    least, slope = numbers
    return torch.where(reached, (least + slope * similarity).clamp(0, 1), by_position)


@fused
def longer(path: Tensor, tokens: Tensor, picked: Tensor, children: int) -> Tensor:
    """Return the last tokens (images, k, REACH) of nodes picked (images, k) of a level.

    Args:
        path: (images, parents, REACH) the same of the nodes whose children the level has.
        tokens: (images, nodes) of the level.
        picked: indices in it.
        children: of each parent, side by side.
    """
    parents = (picked // children)[..., None].expand(-1, -1, REACH - 1)
    return torch.cat([tokens.gather(1, picked)[..., None], path[..., :-1].gather(1, parents)], 2)
