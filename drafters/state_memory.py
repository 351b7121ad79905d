"""Recalls the target's hidden states of the last verified tree by similarity of tokens.

`drafters.recall` recalls distributions in the same way (picture in `drafters.similarity`). Hidden
states can also be read by a network. And since the target's head is linear, a mean of states gives
the geometric mean of their distributions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.round import Round, RoundResult, TreeShape
from decoding.tree import hidden_at
from drafters.similarity import LastTree, SimilarNodes, UnitEmbeddings
from models.target import TargetModel
from support.constants import arange


@dataclass(frozen=True)
class NodeStates:
    """Nodes of a verified tree with the target's hidden states."""

    positions: Tensor  # (images, nodes) image positions, -1 for none
    suffixes: Tensor  # (images, nodes, SUFFIX)
    hidden: Tensor  # (images, guidance, nodes, hidden) that predict their children


class StateMemory:
    """The hidden states that a block drafter recalls: of the last tree, and of the row above.

    Row s % rows of `decided` (images, guidance, rows + 1, hidden) holds the state that predicted
    the token in slot s of an image. The last row is a scratch row: masked writes go there.
    """

    def __init__(self, target: TargetModel, images: int, guidance: int, largest: TreeShape):
        """Allocate for so many images of `guidance` rows; largest: no tree is larger."""
        self.grid, device, hidden = target.grid, target.device, target.spec.hidden
        self.embeddings = UnitEmbeddings.of(target)
        self.rows = self.grid.slots(self.grid.widest) + 2 * self.grid.block(largest.reach)
        like = {"dtype": target.dtype, "device": device}
        self.decided = torch.zeros(images, guidance, self.rows + 1, hidden, **like)
        count = 1 + largest.nodes
        self.last = LastTree(images, count, device)
        states = torch.zeros(images, guidance, count, hidden, **like)
        self.nodes = NodeStates(self.last.positions, self.last.suffixes, states)

    def prefill(self, image: int, hidden: Tensor, code: Tensor) -> None:
        """Begin an image: the hidden state (guidance, 1, hidden) before its first code (1,)."""
        self.last.begin(image, code)
        self.decided[image, :, :1] = hidden

    def at(self, positions: Tensor, round: Round) -> "RecalledStates":
        """Return the states to recall at positions (images, k), whatever their tokens will be."""
        root = round.inputs.decided - 1
        above = self.grid.above(positions + 1)
        above = torch.where(above < 0, root, above).minimum(root)
        above = hidden_at(self.decided, self.grid.slots(above) % self.rows)
        nodes = self.nodes
        similar = SimilarNodes.at(positions, nodes.positions, nodes.suffixes, self.embeddings)
        return RecalledStates(similar, nodes.hidden, above)

    def update(self, result: RoundResult) -> None:
        """Replace the last tree by a verified one, and keep the states of decided tokens."""
        self.last.update(result)
        root, width = result.round.inputs.decided - 1, self.decided.shape[3]
        # states of the target's other layers stand behind the last layer's
        self.nodes.hidden[:, :, : result.tree.nodes + 1] = result.node_hidden[..., :width]
        accepted, hidden = result.accepted, result.accepted_hidden[..., :width]
        offset = arange(hidden.shape[2], root.device)
        slots = self.grid.slots(root) + 1 + offset
        rows = torch.where(offset < accepted.counts, slots % self.rows, self.rows)
        self.decided.scatter_(2, rows[:, None, :, None].expand_as(hidden), hidden)


@dataclass(frozen=True)
class RecalledStates:
    """The states to recall at some positions.

    At a position without a node, that is the state which predicted the token above the next
    position. In the first row, and below undecided tokens, it is the one that predicted the root.
    """

    similar: SimilarNodes
    hidden: Tensor  # (images, guidance, nodes, hidden) of the last tree's nodes
    above: Tensor  # (images, guidance, k, hidden)

    def repeat(self, times: int) -> "RecalledStates":
        """Repeat every position."""
        above = self.above.repeat_interleave(times, 2)
        return RecalledStates(self.similar.repeat(times), self.hidden, above)

    def after(self, suffixes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states (images, guidance, k, hidden) after suffixes, and similarities.

        suffixes and similarities as of `SimilarNodes.weigh`.
        """
        weights, similarity = self.similar.weigh(suffixes)
        has_node = self.similar.has_node[:, None, :, None]
        recalled = weights[:, None].to(self.hidden.dtype) @ self.hidden
        return torch.where(has_node, recalled, self.above), similarity
