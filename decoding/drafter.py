"""What a drafter is: it proposes laws for the tokens behind the nodes of a tree."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from models.base import PromptRows


@dataclass(frozen=True)
class Decided:
    """Tokens that a round has decided, with the target's features of the positions before them.

    features: (images, guidance, n, hidden) at the positions whose next tokens are codes (images, n); counts[i] of them
    count.
    """

    features: Tensor
    codes: Tensor
    counts: list[int]


class Drafter(Protocol):
    """Keeps its own state per image of the batch, in the batch's order.

    window: how many positions behind the root it can foresee without knowing the tokens between; 0 for none.
    """

    window: int

    def open(self, images: int, watch: Stopwatch) -> None:
        """Allocate the state of so many images in flight, forgetting all earlier ones; laps are `draft_forward`."""

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        """Read a new image's prompt, the target's features of it (guidance, length, hidden) and the first code (1,)."""

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        """log q (images, k, vocab) of the tokens behind nodes (images, k); the first call of a round is for the
        root."""

    def foresee(self) -> Tensor:
        """log q (images, window, vocab) of the next positions, whatever stands between; asked if window is not 0."""

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        """See the target's laws log_p (images, 1 + nodes, vocab) behind a round's tree and what they came to."""

    def commit(self, decided: Decided) -> None:
        """Learn what the last round has decided; drops the round's tree."""

    def select(self, images: list[int]) -> None:
        """Keep these images only."""
