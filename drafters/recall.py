"""Stale predictions, weighed by how similar the tokens are that they were made after.

A verified tree holds the target's predictions after many tokens that it did not choose: the other
candidates for the same place. After a token much like the chosen one, the target predicts much the
same. So the distribution after a candidate is recalled from all nodes of the last tree that stand
at its position, each weighed by the similarity of its last tokens to the candidate's own and those
before it (kernel regression, Nadaraya 1964). Siblings of an accepted token are then worth verifying
for what they predict. All levels of a tree are recalled at once (`drafters.window`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from configs.methods import fitted_numbers
from decoding.device import Stopwatch, arange
from decoding.drafter import Draft
from decoding.proposals import Coupled, Proposal
from decoding.round import Round, RoundResult, TreeShape, rows_at
from decoding.tree import GrowingTree
from drafters.drafting import Drafting
from drafters.jacobi import JacobiDrafter
from drafters.similarity import UNKNOWN, Directions, LastTree, Recollection, trust_in
from drafters.window import (
    WindowDrafts,
    candidates_after,
    choose_again,
    lineages,
    noise_to_see,
)
from models.base import PromptRows
from models.target import TargetModel
from support.compiler import fused

CANDIDATES = 5  # per position; 8 accept no more
PASSES = 3  # over the candidates, each of which follows the path that the one before predicts
SHARE = 0.35  # in a mixture, of predictions by position; hits change little from 0.3 to 0.5
_LEAST = -60.0  # log-probability of codes that top-k or top-p cuts, so that means stay finite


@dataclass(frozen=True)
class RecallNumbers:
    """Pairs a, b that weigh what is recalled by m, the similarity of the most similar node."""

    share: tuple[float, float]  # in a mixture: a + b m, cut to [0, 1]
    trust_mixed: tuple[float, float]  # in mixtures, when trees are shaped: exp(a + b m^3)
    trust_alone: tuple[float, float]  # the same of what is recalled alone

    @staticmethod
    def of(numbers: Sequence[float]) -> "RecallNumbers":
        """Return the numbers in their order."""
        return RecallNumbers(*(tuple(numbers[at : at + 2]) for at in (0, 2, 4)))


# Fitted to closed-loop rounds of the shipped model; the trust over all codes.
FITTED_TO_TINY = RecallNumbers((-0.34, 1.32), (0.0, 1.66), (-0.97, 2.56))


@dataclass
class RecalledWindow:
    """What is recalled after the candidates of a round's window."""

    drafts: WindowDrafts
    similarity: Tensor  # (images, steps, candidates) as of `Recollection.after`
    known: Tensor  # (images, steps) bool: whether a node of the last tree stands there
    reached: Tensor  # (images, steps) bool: whether there is a prediction by position
    numbers: RecallNumbers

    @cached_property
    def trust(self) -> Tensor:
        """(images, steps, candidates) in mixtures."""
        return trust_in(self.similarity, *self.numbers.trust_mixed)

    @cached_property
    def shares(self) -> tuple[Tensor, Tensor]:
        """In mixtures: of candidates (images, steps, candidates), and of other tokens, 1 a step."""
        # of the same type, whatever the caller's default is
        by_position = SHARE * self.reached[..., None].to(self.similarity.dtype)
        known = self.known[..., None]
        unknown = torch.full_like(self.similarity[..., :1], UNKNOWN)
        return tuple(
            share_of(similarity, self.numbers.share, known, by_position)
            for similarity in (self.similarity, unknown)
        )

    def look_up(self, tree: GrowingTree, picked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log q (images, k, vocab) after nodes of the newest level.

        The other values, (images, k) each, are which candidates they are, and whether they are any:
        0 and False for nodes that are none.
        """
        step = tree.height
        codes = self.drafts.codes[:, step]
        found = tree.newest.tokens.gather(1, picked)[..., None] == codes[:, None]
        candidates = found.long().argmax(-1)
        return rows_at(self.drafts.draft.log_q[:, step], candidates), candidates, found.any(-1)


class RecallDrafter(JacobiDrafter):
    """Recalls predictions by similarity where the last tree has any, and as Jacobi elsewhere."""

    def __init__(
        self,
        target: TargetModel,
        guess: str,
        largest: TreeShape,
        numbers: RecallNumbers = FITTED_TO_TINY,
        proposal: Proposal = Coupled(),  # noqa: B008 (frozen)
    ):
        """proposal: takes the nodes' children; one that samples must not see the target's noise."""
        super().__init__(target, guess, largest)
        self.numbers, self.proposal = numbers, proposal
        self.candidates = min(CANDIDATES, self.codes)
        self.directions = Directions.of(target)

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        super().open(images, slots, watch)
        size = images, 1 + self.largest.nodes, self.codes
        self.last = LastTree(*size[:2], self.device)
        self.predictions = torch.full(size, _LEAST, dtype=self.dtype, device=self.device)
        self._recalled: RecalledWindow | None = None

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        super().prefill(image, prompt, hidden, code)
        self.last.begin(image, code)

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Draft:
        return self.recall_window(round).drafts.expand(tree, picked)

    def recall(self, tree: GrowingTree, picked: Tensor, round: Round) -> tuple[Draft, Tensor]:
        """Return what is recalled after nodes picked (images, k) of the newest level.

        The second value is its share (images, k) in a mixture with what a drafter predicts.
        """
        recalled, step = self.recall_window(round), tree.height
        log_q, candidates, among = recalled.look_up(tree, picked)
        trust = recalled.trust[:, step].gather(1, candidates).where(among, 1)
        share, other = (shares[:, step] for shares in recalled.shares)
        return Draft(log_q, trust), share.gather(1, candidates).where(among, other)

    def update(self, result: RoundResult) -> None:
        self.last.update(result)
        self.predictions[:, : result.tree.nodes + 1] = result.log_p.clamp(min=_LEAST)
        self._recalled = None  # distributions after all candidates take memory
        super().update(result)

    def recall_window(self, round: Round) -> RecalledWindow:
        """Return what a round's levels recall, which is computed at the first call."""
        if self._recalled is None or self._recalled.drafts.round is not round:
            # of the tokens to draft
            position = round.position(arange(round.shape.reach, self.device))
            noise = noise_to_see(self.proposal, round, position)
            nodes = self.last.positions, self.last.lineage
            recollection = Recollection.at(position - 1, *nodes, self.directions)
            by_position = self.ahead(round).clamp(min=_LEAST)
            root = self.last.recent[:, :1, None].expand(-1, -1, self.candidates)
            codes = candidates_after(root, by_position, noise)
            log_q, similarity = self._after(codes, recollection, by_position)
            for _ in range(PASSES - 1):
                codes, _ = choose_again(codes, log_q, noise)
                log_q, similarity = self._after(codes, recollection, by_position)
            draft = Draft(log_q, trust_in(similarity, *self.numbers.trust_alone))
            drafts = WindowDrafts(round, codes, draft, self.proposal, noise)
            reached = position <= self.reached
            self._recalled = RecalledWindow(
                drafts, similarity, recollection.known, reached, self.numbers
            )
        return self._recalled

    def _after(
        self, codes: Tensor, recollection: Recollection, by_position: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log q (images, steps, candidates, vocab) after codes, and their similarities.

        Where no node of the last tree stands they are those by position alone.
        """
        size = codes.shape[1:]
        tokens = lineages(codes, self.last.recent).flatten(1, 2)
        weights, similarity = recollection.each(self.candidates).after(tokens)
        weights = weights.unflatten(1, size)
        log_q = _predicted(weights, self.predictions, recollection.known, by_position)
        return log_q, similarity.unflatten(1, size)


@fused
def _predicted(weights: Tensor, predictions: Tensor, known: Tensor, by_position: Tensor) -> Tensor:
    # means of logarithms are a geometric mean, which does not sum to 1
    recalled = (weights.flatten(1, 2) @ predictions).view(*weights.shape[:3], -1)
    log_q = torch.where(known[..., None, None], recalled, by_position[:, :, None])
    return log_q.log_softmax(-1)


@fused
def share_of(
    similarity: Tensor, numbers: tuple[float, float], known: Tensor, by_position: Tensor
) -> Tensor:
    """Return shares in a mixture: by similarity where the last tree has nodes (`known`)."""
    least, slope = numbers
    return torch.where(known, (least + slope * similarity).clamp(0, 1), by_position)


def recall_drafter(parts: Drafting) -> RecallDrafter:
    """Build the drafter without weights that recalls predictions by similarity of tokens."""
    text = parts.method.recall_numbers
    numbers = FITTED_TO_TINY if text is None else RecallNumbers.of(fitted_numbers(text))
    return RecallDrafter(parts.target, parts.method.guess, parts.largest, numbers, parts.proposal)
