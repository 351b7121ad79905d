"""The target's hidden states of the last verified tree, recalled by similarity of tokens.

`drafters.recall` recalls distributions in the same way. Hidden states can be read by a network,
too. And since the target's head is linear, a mixture of them gives the geometric mixture of their
distributions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.device import arange
from decoding.round import Round, RoundResult, TreeShape, hidden_at
from drafters.similarity import Directions, LastTree, Recollection
from models.target import TargetModel


@dataclass(frozen=True)
class Nodes:
    """Nodes of a verified tree."""

    positions: Tensor  # (images, nodes) image positions, -1 for none
    lineage: Tensor  # (images, nodes, REACH) their last tokens
    hidden: Tensor  # (images, guidance, nodes, hidden) of the target, that predict their children


class StaleHiddenStates:
    """What a block drafter remembers of the images in flight: the last tree, and the row above.

    The state that predicted the token in slot s of an image stands in row s % rows of `exact`
    (images, guidance, rows + 1, hidden); the last row is for what nobody reads.
    """

    def __init__(self, target: TargetModel, images: int, guidance: int, largest: TreeShape):
        """Allocate for so many images of `guidance` rows; largest: no tree is larger."""
        self.grid, device, hidden = target.grid, target.device, target.spec.hidden
        self.directions = Directions.of(target)
        self.rows = self.grid.slots(self.grid.widest) + 2 * self.grid.block(largest.reach)
        like = {"dtype": target.dtype, "device": device}
        self.exact = torch.zeros(images, guidance, self.rows + 1, hidden, **like)
        count = 1 + largest.nodes
        self.last = LastTree(images, count, device)
        states = torch.zeros(images, guidance, count, hidden, **like)
        self.nodes = Nodes(self.last.positions, self.last.lineage, states)

    def prefill(self, image: int, hidden: Tensor, code: Tensor) -> None:
        """Begin an image: the hidden state (guidance, 1, hidden) before its first code (1,)."""
        self.last.begin(image, code)
        self.exact[image, :, :1] = hidden

    def at(self, positions: Tensor, round: Round) -> "Stale":
        """Return what is known of positions (images, k) before their tokens are."""
        root = round.inputs.decided - 1
        above = self.grid.above(positions + 1)
        above = self._exact(torch.where(above < 0, root, above).minimum(root))
        nodes = self.nodes.positions, self.nodes.lineage
        recollection = Recollection.at(positions, *nodes, self.directions)
        return Stale(recollection, self.nodes.hidden, above)

    def before_root(self, round: Round) -> Tensor:
        """Return the state (images, guidance, 1, hidden) that predicted the root."""
        return self._exact(round.inputs.decided - 1)

    def _exact(self, position: Tensor) -> Tensor:
        return hidden_at(self.exact, self.grid.slots(position) % self.rows)

    def update(self, result: RoundResult) -> None:
        """Replace the last tree by a verified one, and keep the states of what was decided."""
        self.last.update(result)
        root, width = result.round.inputs.decided - 1, self.exact.shape[3]
        # what the head reads of other layers stands behind the last one's
        self.nodes.hidden[:, :, : result.tree.nodes + 1] = result.node_hidden[..., :width]
        accepted, hidden = result.accepted, result.accepted_hidden[..., :width]
        step = arange(hidden.shape[2], root.device)
        slots = self.grid.slots(root) + 1 + step
        rows = torch.where(step < accepted.counts, slots % self.rows, self.rows)
        self.exact.scatter_(2, rows[:, None, :, None].expand_as(hidden), hidden)


@dataclass(frozen=True)
class Stale:
    """The stale hidden states of some positions.

    Where no node of the last tree stands, that is the state which predicted the token above the
    next one; in the first row, and below undecided tokens, the one that predicted the root.
    """

    recollection: Recollection
    hidden: Tensor  # (images, guidance, nodes, hidden) of the last tree's nodes
    above: Tensor  # (images, guidance, k, hidden)

    def each(self, times: int) -> "Stale":
        """Return those of every position so many times."""
        above = self.above.repeat_interleave(times, 2)
        return Stale(self.recollection.each(times), self.hidden, above)

    def after(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states (images, guidance, k, hidden) after tokens, and similarities.

        As `Recollection.after`.
        """
        weights, similarity = self.recollection.after(tokens)
        known = self.recollection.known[:, None, :, None]
        recalled = weights[:, None].to(self.hidden.dtype) @ self.hidden
        return torch.where(known, recalled, self.above), similarity
