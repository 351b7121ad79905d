"""What a drafter is: it proposes distributions for the tokens that follow the nodes of a tree."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from decoding.proposals import Predictions, Proposal
from decoding.round import Round, RoundResult
from decoding.stopwatch import Stopwatch
from decoding.tree import GrowingTree
from models.base import Layers, PromptRows


class Drafter(Protocol):
    """Proposes tokens, and keeps its own state of every image, row by row as the batch does.

    A round that drafts calls `begin`, then the methods of one of the two kinds below, and every
    round calls `update`. These are functions of tensors and of the round's static shape, and change
    state in place: on a GPU they are captured once and replayed. A drafter without state leaves
    out what it has no use for.
    """

    reads: Layers = ()  # layers of the target whose hidden states it reads, behind the last ones
    dtype: torch.dtype  # of the distributions

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        """Allocate state for so many images, forgetting earlier ones.

        slots: per row of the target's cache, as many as its prompts and images take; it may grow
        to `cache.image_slots` when an image begins, and a drafter's own cache must grow with it.
        Forward passes of the drafter's network are timed as laps `draft_forward` of the watch.
        """
        return

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        """Begin an image: its prompt, the target's hidden states of the prompt, its first code.

        Images of one prompt come one after the other, with the same `prompt` and hidden states.

        hidden: (guidance, length, hidden). code: (1,).
        """
        return

    def begin(self, round: Round, proposal: Proposal) -> None:
        """Start a round; `proposal` will take the children."""
        return

    def update(self, result: RoundResult) -> None:
        """Learn what the round has decided."""
        return


class Children(NamedTuple):
    """Candidates for the tokens after k nodes."""

    tokens: Tensor  # (images, k, count), the best first
    log_hits: Tensor  # (images, k, count) estimated log-probability of being right; -inf: absent
    log_q: Tensor | None  # (images, k, vocab) that they were taken from, if the verifier reads it


class TreeDrafter(Drafter, Protocol):
    """Proposes tokens after the nodes of a tree; called once per level."""

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Predictions:
        """Return the distributions after nodes picked (images, k) of the newest level."""

    def children(
        self, tree: GrowingTree, picked: Tensor, round: Round, proposal: Proposal
    ) -> Children:
        """Return at least `round.shape.width` children of nodes picked (images, k)."""
        predictions, level = self.expand(tree, picked, round), tree.height
        noise = proposal.noise(round, slice(level, level + 1), picked.shape[1])
        # ask for at least two, so that an estimate does not depend on the widths of other images
        # in the batch
        count = max(round.shape.width, 2)
        taken = proposal.children(predictions, noise, count)
        return Children(*taken, predictions.log_q if round.keep_q else None)


class ChainDrafter(Drafter, Protocol):
    """Proposes a token for each of the next positions, whatever tokens come between."""

    def predict_ahead(self, round: Round) -> Predictions:
        """Return the distributions (images, window, vocab) of the next positions."""
