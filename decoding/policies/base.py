"""What a tree policy is: it shapes every round's draft tree and learns from what was accepted."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from decoding.drafter import Drafter
from decoding.proposals import Proposal
from decoding.round import ImageRound, Round, TreeShape
from decoding.tree import DraftTree


class Controller(Protocol):
    """The policy's memory of one image."""

    def shape(self, position: int) -> TreeShape:
        """Return the shape of the next tree, which is cut where the image ends: a level or more.

        position: image position of its first level.
        """

    def observe(self, outcome: ImageRound) -> None:
        """Learn from a round."""


@dataclass(frozen=True)
class FixedController:
    """The same shape in every round."""

    fixed: TreeShape

    def shape(self, position: int) -> TreeShape:
        return self.fixed

    def observe(self, outcome: ImageRound) -> None:
        pass


Asked = TypeVar("Asked", bound=Drafter, contravariant=True)  # the kind of drafter it grows with


class TreePolicy(Protocol[Asked]):
    """Shapes draft trees and grows them."""

    name: str
    largest: TreeShape  # no tree is larger
    reads_entropy: bool  # whether its controllers read the target's entropy, which takes time

    def controller(self, seed: int) -> Controller:
        """Return the memory of a new image; `seed` feeds policies that draw random numbers."""

    def grow(self, round: Round, drafter: Asked, proposal: Proposal) -> DraftTree:
        """Return the trees that a round verifies."""
