"""What a round reads and what it leaves: inputs, static shape, noise, and the verified tree."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from decoding.device import arange
from decoding.graphs import RoundShape
from decoding.noise import NodeNoise, PositionalNoise
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict


@dataclass(frozen=True)
class ImageInputs:
    """What the host knows of an image before a round; a row of `RoundInputs`."""

    code: int  # last decided code, the tree's root
    decided: int  # image tokens decided: the position of the root's children
    length: int  # committed slots of the target's cache, which end before the root
    pending: int  # slots decided in the last round, the root's among them
    stream: int  # key of the noise that this round samples drafts with
    depth: int  # limits of the tree, as in `TreeShape`
    width: int
    nodes: int
    window: int


# A row without an image: it drafts nothing, writes to slot 1 and never commits.
IDLE = ImageInputs(0, decided=1, length=1, pending=1, stream=0, depth=0, width=0, nodes=0, window=0)


class RoundInputs:
    """The numbers that differ from round to round, as views of one table on the device."""

    def __init__(self, table: Tensor):
        """table: (images, 9) with a column per field of `ImageInputs`."""
        code, self.decided, length, pending, self.stream, *limits = table.split(1, 1)  # (images, 1)
        self.depth, self.width, self.nodes, self.window = limits
        self.code, self.length, self.pending = code[:, 0], length[:, 0], pending[:, 0]  # (images,)

    @staticmethod
    def rows(images: Sequence[ImageInputs]) -> list[tuple[int, ...]]:
        """Return the table's rows."""
        return [tuple(vars(image).values()) for image in images]


@dataclass(frozen=True, eq=False)
class Round:
    """One round: its static sizes, its inputs and the noise at its positions."""

    shape: RoundShape
    inputs: RoundInputs
    noise: PositionalNoise
    keep_q: bool = False  # whether the verifier reads the drafter's distributions

    def position(self, steps: Tensor | int) -> Tensor:
        """Return the image positions (images, n) so many steps after the root's children."""
        return self.inputs.decided + steps

    @cached_property
    def ahead(self) -> Tensor:
        """(images, reach + 1, vocab) the noise that the target will choose with, by depth."""
        return self.noise(self.position(arange(self.shape.reach + 1, self.inputs.code.device)))

    def node_noise(self, tree: DraftTree) -> NodeNoise:
        """Return the noise after the nodes of a tree; in a chain their depths are in order."""
        ahead = self.ahead[:, : tree.nodes + 1] if tree.chain else None
        return NodeNoise(self.noise, tree.depths, self.inputs.decided, ahead)

    def draft_noise(self, levels: Tensor, parents: Tensor) -> Tensor:
        """Return noise (images, n, vocab) for the children of n nodes, drawn for this round alone.

        levels: (n,) or (1,), those of the children, from 0. parents: (n,) rank of their parent
        among the nodes that are expanded into its level.
        """
        return self.noise.draft(self.inputs.stream, self.position(levels), parents)


@dataclass(frozen=True)
class AcceptedTokens:
    """The slots of a verification pass that stay, in order, and the codes that follow them."""

    slots: Tensor  # (images, n) offsets from the root's slot
    codes: Tensor  # (images, n) code j follows slot j
    counts: Tensor  # (images, 1) how many of the n are valid


@dataclass(frozen=True)
class RoundResult:
    """A verified tree, as drafters, statistics and watchers see it."""

    round: Round
    tree: DraftTree
    hidden: Tensor  # (images, guidance, slots, hidden) of the target, in the order of its slots
    node_hidden: Tensor  # (images, guidance, 1 + nodes, hidden) that predict a node's children
    log_p: Tensor  # (images, 1 + nodes, vocab) the target's, after every node
    verdict: Verdict
    accepted: AcceptedTokens

    @property
    def accepted_hidden(self) -> Tensor:
        """(images, guidance, n, hidden) at the accepted slots: what predicted each code."""
        return hidden_at(self.hidden, self.accepted.slots)


def rows_at(values: Tensor, index: Tensor) -> Tensor:
    """Return rows (images, k, n) of values (images, rows, n), by their index (images, k)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


def hidden_at(hidden: Tensor, slots: Tensor) -> Tensor:
    """Return hidden (images, guidance, slots, hidden) at slots (images, n)."""
    index = slots[:, None, :, None].expand(-1, hidden.shape[1], -1, hidden.shape[3])
    return hidden.gather(2, index)
