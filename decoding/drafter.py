"""What a drafter is: it proposes distributions for the tokens that follow the nodes of a tree."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from torch import Tensor

from decoding.noise import Noise
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from models.base import Layers, PromptRows


@dataclass(frozen=True)
class Decided:
    """Tokens that a round has decided, with the target's features that predicted them.

    before: the features, or what returns them; not every drafter reads them, or at once. codes:
    (images, n). counts: how many of the n are valid, per image; (images, 1) on the device in rounds
    that are recorded.
    """

    before: Tensor | Callable[[], Tensor]
    codes: Tensor
    counts: list[int] | Tensor

    @cached_property
    def features(self) -> Tensor:
        """(images, guidance, n, hidden); feature j is that of the position before codes[:, j]."""
        return self.before if isinstance(self.before, Tensor) else self.before()


class Drafter(Protocol):
    """Proposes tokens and keeps its own state of every image, in the batch's order.

    A round calls `expand` once per tree level, `foresee` at most once, then `observe` and `commit`.

    window: positions after the root that it can foresee without knowing the tokens between; 0 if
    none.
    replays: whether its rounds can be recorded and replayed.
    trust: (images, k) how much better than usual the distributions are that `expand` returned last,
    as factors on the calibration; None if the drafter does not tell them apart.
    reads: layers of the target whose hidden states it reads, too. They stand behind the features
    that it is given, of `start`, `commit` and `Informed.see`.
    """

    window: int
    replays: bool
    trust: Tensor | None
    reads: Layers

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        """Allocate state for so many images, forgetting earlier ones.

        fixed: rounds will be recorded and replayed. Then `expand` to `commit` are functions of
        tensors alone, with the same shapes in every round, and change state in place only.

        Forward passes of its network are timed as laps `draft_forward` of the watch.
        """

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        """Begin an image: its prompt, the target's features of the prompt, and its first code.

        Images of one prompt come one after the other, with the same `prompt` and features.

        features: (guidance, length, hidden). code: (1,).
        """

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        """Return log q (images, k, vocab) of the children of nodes (images, k).

        They are nodes of the newest level, at depth tree.height; a round begins with the root.
        """

    def foresee(self) -> Tensor:
        """Return log q (images, window, vocab) of the next positions, whatever tokens come between.

        Called only if window is not 0.
        """

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        """See the verified tree: the target's log_p (images, 1 + nodes, vocab), and the verdict."""

    def commit(self, decided: Decided) -> None:
        """Take over what the round has decided, and drop its tree."""

    def select(self, images: list[int]) -> None:
        """Keep these images only."""


@runtime_checkable
class Informed(Protocol):
    """A drafter that reads more of a round than `Drafter` gives it."""

    def hear(self, noise: Noise) -> None:
        """Take the noise that the target will choose with; before the round's first `expand`.

        Not called for a proposal that draws candidates with noise of its own.
        """

    def see(self, features: Tensor) -> None:
        """Take the target's features of the verified tree; before the round's `observe`.

        features: (images, guidance, 1 + nodes, hidden), those that predict the children of a node.
        """
