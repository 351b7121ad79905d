"""The target's hidden states of the last verified tree, recalled by similarity of tokens.

`drafters.recall` recalls distributions in the same way. Hidden states can be read by a network,
too. And since the target's head is linear, a mixture of them gives the geometric mixture of their
distributions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.device import arange
from decoding.graphs import TreeShape
from decoding.round import Round, RoundResult, hidden_at
from drafters.similarity import SHARPNESS, Directions, LastTree
from models.base import TargetModel

UNKNOWN = -1.0  # the similarity where no node stands


@dataclass(frozen=True)
class Nodes:
    """Nodes of a verified tree."""

    positions: Tensor  # (images, nodes) image positions, -1 for none
    lineage: Tensor  # (images, nodes, REACH) their last tokens
    hidden: Tensor  # (images, guidance, nodes, hidden) of the target, that predict their children

    def image(self, index: int) -> "Nodes":
        """Return a copy of one image's."""
        one = slice(index, index + 1)
        return Nodes(
            self.positions[one].clone(), self.lineage[one].clone(), self.hidden[one].clone()
        )


def recall(
    tokens: Tensor, positions: Tensor, nodes: Nodes, directions: Directions
) -> tuple[Tensor, Tensor]:
    """Return hidden states (images, guidance, k, hidden) by similarity, and the greatest one.

    The latter is (images, k): 1 for the same tokens, `UNKNOWN` where no node stands at the
    position. There the hidden states are 0.

    Args:
        tokens: (images, k, REACH) the last ones, the newest first.
        positions: (images, k) of the newest.
        nodes: that are recalled.
        directions: of the tokens.
    """
    here = positions[..., None] == nodes.positions[:, None]  # (images, k, nodes)
    known = here.any(2)
    merit = torch.zeros(here.shape, dtype=directions.dtype, device=tokens.device)
    queries, keys = directions(tokens).unbind(2), directions(nodes.lineage).unbind(2)
    for query, key, sharpness in zip(queries, keys, SHARPNESS, strict=True):
        merit = merit.baddbmm(query, key.transpose(1, 2), alpha=sharpness)
    weights = merit.masked_fill(~here & known[..., None], -torch.inf).softmax(2) * known[..., None]
    similarity = merit.masked_fill(~here, -torch.inf).amax(2) / sum(SHARPNESS)
    recalled = weights[:, None].to(nodes.hidden.dtype) @ nodes.hidden
    return recalled, similarity.where(known, UNKNOWN)


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

    def recall(self, tokens: Tensor, positions: Tensor, round: Round) -> tuple[Tensor, Tensor]:
        """Return hidden states (images, guidance, k, hidden) after tokens, and similarities.

        Where no node stands, the state is the one that predicted the token above the next one; in
        the first row, and below undecided tokens, the one that predicted the root. Similarities
        are (images, k).

        tokens: (images, k, REACH). positions: (images, k) of the newest.
        """
        recalled, similarity = recall(tokens, positions, self.nodes, self.directions)
        root = round.inputs.decided - 1
        above = self.grid.above(positions + 1)
        above = self._exact(torch.where(above < 0, root, above).minimum(root))
        return torch.where((similarity > UNKNOWN)[:, None, :, None], recalled, above), similarity

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
