"""What a round reads and leaves: static sizes, inputs and noise; the verified tree, statistics."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, isnan
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decoding.noise_table import NodeNoise, NoiseTable
from decoding.tree import DraftTree, hidden_at
from decoding.verifiers.base import Verdict
from support.constants import arange


class TreeShape(NamedTuple):
    """Limits of one image's tree."""

    depth: int  # levels that are grown
    width: int  # children per expanded node, and nodes expanded per level
    nodes: int  # draft tokens to verify
    window: int = 0  # tokens of a chain, which is not grown by levels

    @property
    def reach(self) -> int:
        """The depth that no node exceeds."""
        return max(self.depth, self.window)

    def within(self, remaining: int) -> "TreeShape":
        """Return the shape cut at the end of an image, whose last token is a bonus token."""
        last = remaining - 1
        return self._replace(depth=min(self.depth, last), window=min(self.window, last))


NO_TREE = TreeShape(0, 0, 0)  # plain decoding


def largest_of(shapes: Iterable[TreeShape]) -> TreeShape:
    """Return the smallest shape that holds all of them."""
    return TreeShape(*map(max, zip(*shapes, strict=True)))


@dataclass(frozen=True)
class RoundShape:
    """Static sizes of a round. One CUDA graph is captured per value."""

    images: int  # rows of the batch, idle ones included
    # the next four have the order of `TreeShape`, which is unpacked into them
    depth: int  # levels of the deepest tree
    width: int  # children per expanded node, and nodes expanded per level, at most
    nodes: int  # draft tokens verified per image, at most
    window: int  # tokens of a chain
    pending: int  # slots decided in the last round, at most: the drafter has not processed them
    committed: int  # slots of the target's cache that hold committed tokens, at most
    row_ends: int = 0  # tree nodes after which an image row ends, at most
    end_depths: tuple[int, ...] = ()  # depths of such nodes, 0 for the root
    uniform: bool = True  # every image's tree has exactly these limits

    @property
    def reach(self) -> int:
        """The depth that no node exceeds."""
        return max(self.depth, self.window)


class ImageInputs(NamedTuple):
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

    @property
    def tree(self) -> TreeShape:
        return TreeShape(*self[-4:])


# A row without an image: it drafts nothing, writes to slot 1 and never commits.
# 1 and not 0: the root is at position decided - 1, and drafters read from slot length - pending on.
IDLE = ImageInputs(0, decided=1, length=1, pending=1, stream=0, depth=0, width=0, nodes=0, window=0)


class RoundInputs:
    """The numbers that differ from round to round, as views of one table on the device."""

    def __init__(self, table: Tensor):
        """table: (images, 9) with a column per field of `ImageInputs`."""
        self.table = table
        code, self.decided, length, pending, self.stream, *limits = table.split(1, 1)  # (images, 1)
        self.depth, self.width, self.nodes, self.window = limits
        self.code, self.length, self.pending = code[:, 0], length[:, 0], pending[:, 0]  # (images,)


@dataclass(frozen=True, eq=False)
class Round:
    """One round: its static sizes, its inputs and the noise at its positions."""

    shape: RoundShape
    inputs: RoundInputs
    noise: NoiseTable
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


@dataclass(frozen=True)
class VerifyTokens:
    """The tokens of a verification pass: a tree's nodes, then row ends (`decoding.row_ends`)."""

    codes: Tensor  # (images, m)
    depths: Tensor  # (images, m) distance from the root in slots
    visible: Tensor  # (images, m, m) bool, what a slot sees
    exits: Tensor | None = None  # (images, 1 + nodes) slots that predict children; None: the nodes'


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

    def next_inputs(self) -> Tensor:
        """Return the table of the next round's inputs: trees keep their sizes, and no row ends."""
        table, accepted = self.round.inputs.table, self.verdict.accepted[:, None]
        bonus, decided = self.verdict.emitted.gather(1, accepted), accepted + 1
        # in the order of `ImageInputs`: code; decided and length; pending; the others stay
        return torch.cat([bonus, table[:, 1:3] + decided, decided, table[:, 4:]], 1)

    def summary(self, entropy: bool = False) -> Tensor:
        """Return what the host reads, (images, 1 + 2 (1 + height) + 3 (1 + nodes)) numbers.

        They have the type of probabilities, in which indices and codes below 2^24 are exact.

        entropy: whether that of the target follows, at every position decided: (1 + height) more.
        """
        tree, verdict = self.tree, self.verdict
        # one transfer for all of them, since each is a wait for the device
        likeliest = self.log_p.amax(-1)  # (images, 1 + nodes); NaN where a distribution has one
        decided = tree.height + 1
        path = verdict.path[:, :decided]
        columns = [
            verdict.accepted[:, None], path, verdict.emitted[:, :decided],
            tree.scores, tree.depths, likeliest,
        ]  # fmt: skip
        if entropy:
            p = hidden_at(self.log_p[:, None], path)[:, 0].exp()
            columns.append(torch.special.entr(p).sum(-1))
        return torch.cat(columns, 1)


class ImageRound(NamedTuple):
    """One image's round, as numbers of the host.

    top1 and entropy are tuples of floats, one per decided position: accepted + 1.
    """

    position: int  # image position of the first token that it decided
    accepted: int  # accepted draft tokens
    depth: int  # of the verified tree, after pruning
    nodes: int  # of the verified tree, its root not counted
    # geometric mean of the probability per level along the best path to the deepest level, by the
    # tree's own scores
    confidence: float
    top1: tuple[float, ...]  # the target's greatest probability at each decided position
    # of the target's distribution there, in nats; empty if the policy does not read it
    entropy: tuple[float, ...]
    codes: tuple[int, ...]  # that the round decided: the accepted ones and the bonus token
    nan_from: str | None = None  # "drafter" or "target", if its distributions contain NaN

    @staticmethod
    def read(row: np.ndarray, tree: DraftTree, position: int) -> "ImageRound":
        """Return an image's round from its row of the summary.

        tree: the round's. position: of the first token that the round decided.
        """
        accepted, tokens = int(row[0]), 1 + 2 * (1 + tree.height)
        nodes = tokens + 3 * (1 + tree.nodes)
        path, codes = row[1:tokens].astype(int).reshape(2, -1)[:, : accepted + 1].tolist()
        scores, depths, likeliest = row[tokens:nodes].reshape(3, -1).tolist()
        entropy = row[nodes:][: accepted + 1].tolist()
        sources = {"drafter": scores, "target": likeliest}
        nan_from = next((name for name in sources if any(map(isnan, sources[name]))), None)
        present = [node for node in zip(depths, scores, strict=True) if node[1] > -inf]
        depth, best = max(present)  # the likeliest of the deepest nodes
        return ImageRound(
            position,
            accepted,
            int(depth),
            len(present) - 1,
            confidence=exp(best / max(depth, 1)),
            top1=tuple(exp(likeliest[node]) for node in path),
            entropy=tuple(entropy),
            codes=tuple(codes),
            nan_from=nan_from,
        )
