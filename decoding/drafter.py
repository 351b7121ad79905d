"""What a drafter is: it proposes distributions for the tokens that follow the nodes of a tree."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from decoding.device import Stopwatch
from decoding.round import Round, RoundResult
from decoding.tree import GrowingTree
from models.base import Layers, PromptRows


@dataclass(frozen=True)
class Draft:
    """A drafter's distributions after some nodes."""

    log_q: Tensor | None  # (images, k, vocab); None where `children` will do
    # (images, k) how much sharper candidates are judged than by these distributions and the noise;
    # None where the drafter does not tell nodes apart
    trust: Tensor | None = None
    # What the round's proposal takes, as it returns them, where the drafter has asked it already:
    # candidates (images, k, width) and their estimated log-probabilities.
    children: tuple[Tensor, Tensor] | None = None


class Drafter(Protocol):
    """Proposes tokens, and keeps its own state of every image, row by row as the batch does.

    A round drafts, as the two kinds below say, then calls `update`. These are functions of tensors
    and of the round's static shape, and change state in place: on a GPU they are captured once and
    replayed.
    """

    reads: Layers  # layers of the target whose hidden states it reads, behind the last ones
    dtype: torch.dtype  # of the distributions

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        """Allocate state for so many images, forgetting earlier ones.

        slots: per row of the target's cache, so many as its prompts and images take; it may grow
        to `cache.image_slots` when an image begins, and a drafter's own cache must grow with it.
        Forward passes of the drafter's network are timed as laps `draft_forward` of the watch.
        """

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        """Begin an image: its prompt, the target's hidden states of the prompt, its first code.

        Images of one prompt come one after the other, with the same `prompt` and hidden states.

        hidden: (guidance, length, hidden). code: (1,).
        """

    def update(self, result: RoundResult) -> None:
        """Learn what the round has decided."""


class TreeDrafter(Drafter, Protocol):
    """Proposes tokens after the nodes of a tree; called once per level."""

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Draft:
        """Return the distributions after nodes picked (images, k) of the newest level."""


class ChainDrafter(Drafter, Protocol):
    """Proposes a token for each of the next positions, whatever tokens come between."""

    def predict_ahead(self, round: Round) -> Draft:
        """Return the distributions (images, window, vocab) of the next positions."""
