"""Draft trees: candidate continuations of the last decided code, one tree per image.

A tree grows level by level (`GrowingTree`), is pruned, and becomes a `DraftTree` that the target
verifies in one forward pass.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from support.compiler import fused
from support.constants import arange, constant


def rows_at(values: Tensor, index: Tensor) -> Tensor:
    """Return rows (images, k, n) of values (images, rows, n), by their index (images, k)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


def hidden_at(hidden: Tensor, slots: Tensor) -> Tensor:
    """Return hidden (images, guidance, slots, hidden) at slots (images, n)."""
    index = slots[:, None, :, None].expand(-1, hidden.shape[1], -1, hidden.shape[3])
    return hidden.gather(2, index)


@dataclass(frozen=True)
class Level:
    """The nodes of one depth: `children` of each expanded node, side by side."""

    tokens: Tensor  # (images, nodes) codes
    scores: Tensor  # (images, nodes) log of the estimated probability of the path; -inf: absent
    parents: Tensor  # (images, nodes) index of the parent in the whole tree
    first: int  # index of the level's first node in the whole tree
    children: int  # per expanded node
    log_q: Tensor | None = None  # (images, expanded, vocab) that the tokens were taken from
    expanded: Tensor | None = None  # (images, expanded) whose children they are, in the whole tree


@dataclass(frozen=True)
class GrowingTree:
    """A tree while it grows: only nodes of its newest level are expanded further."""

    levels: tuple[Level, ...]

    @staticmethod
    def root(codes: Tensor, dtype: torch.dtype) -> "GrowingTree":
        """Return trees without nodes over the last decided codes (images,)."""
        root = codes[:, None]
        zero = torch.zeros_like(root)
        return GrowingTree((Level(root, zero.to(dtype), zero, first=0, children=1),))

    @property
    def height(self) -> int:
        """Depth of the newest level; 0 for the root."""
        return len(self.levels) - 1

    @property
    def newest(self) -> Level:
        return self.levels[-1]

    def extend(
        self, picked: Tensor, tokens: Tensor, log_hits: Tensor, log_q: Tensor | None = None
    ) -> "GrowingTree":
        """Return the tree with one more level.

        Args:
            picked: (images, k) nodes of the newest level to expand.
            tokens: (images, k, children) their children's codes.
            log_hits: (images, k, children) what they add to the scores of their parents' paths.
            log_q: (images, k, vocab) that the tokens were taken from; None: no verifier reads it.
        """
        above = self.newest
        expanded, parents, scores = _grown(above.scores, picked, log_hits, above.first)
        level = Level(
            tokens.flatten(1),
            scores,
            parents,
            first=above.first + above.tokens.shape[1],
            children=tokens.shape[2],
            log_q=log_q,
            expanded=expanded,
        )
        return GrowingTree((*self.levels, level))

    def complete(self) -> "DraftTree":
        """Return the tree with all its nodes."""
        newest = self.newest
        if self.height == 0:
            return DraftTree(newest.tokens, newest.parents, newest.parents, newest.scores)
        tokens, parents, scores = (
            torch.cat([getattr(level, name) for level in self.levels], 1)
            for name in ("tokens", "parents", "scores")
        )
        sizes = [level.tokens.shape[1] for level in self.levels]
        depths = tuple(depth for depth, size in enumerate(sizes) for _ in range(size))
        return DraftTree(
            tokens,
            parents,
            constant(depths, tokens.device).expand_as(tokens),
            scores,
            height=self.height,
            width=max(level.children for level in self.levels[1:]),
            log_q=self._log_q(*tokens.shape),
        )

    def _log_q(self, images: int, nodes: int) -> Tensor | None:
        """Return log q (images, nodes, vocab) after every node, if kept; zeros after leaves."""
        if (newest := self.newest.log_q) is None:
            return None
        log_q = newest.new_zeros(images, nodes, newest.shape[2])
        for level in self.levels[1:]:
            assert level.log_q is not None and level.expanded is not None  # as the newest has them
            log_q.scatter_(1, level.expanded[..., None].expand_as(level.log_q), level.log_q)
        return log_q


@fused
def _grown(
    above: Tensor, picked: Tensor, log_hits: Tensor, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the expanded nodes (images, k), and their children's parents and scores (images, n).

    Nodes are numbered in the whole tree.

    Args:
        above: (images, nodes) scores of the newest level.
        picked: (images, k) of its nodes.
        log_hits: (images, k, children) what their children add.
        first: index of the level's first node.
    """
    expanded = picked + first
    parents = expanded[..., None].expand(-1, -1, log_hits.shape[2]).flatten(1)
    return expanded, parents, (above.gather(1, picked)[..., None] + log_hits).flatten(1)


@dataclass(frozen=True)
class DraftTree:
    """A whole tree per image. Index 0 is the root, the last decided code; parents come first.

    Images may have fewer nodes than others of the batch: the rest are absent.
    """

    tokens: Tensor  # (images, 1 + nodes) codes
    parents: Tensor  # (images, 1 + nodes) index of the parent; 0 for the root
    depths: Tensor  # (images, 1 + nodes)
    scores: Tensor  # (images, 1 + nodes) log of the path's estimated probability; -inf: absent
    height: int = 0  # no node is deeper
    width: int = 1  # no node has more children; 1: a chain, in order
    log_q: Tensor | None = None  # (images, 1 + nodes, vocab) that a node's children were taken from
    by_rank: bool = False  # a level's nodes stand in the order of their rank paths (static trees)

    @property
    def nodes(self) -> int:
        """Nodes of a row without the root, absent ones included."""
        return self.tokens.shape[1] - 1

    @property
    def chain(self) -> bool:
        """Whether every node sees all nodes before it."""
        return self.width == 1

    @property
    def present(self) -> Tensor:
        """(images, 1 + nodes) bool: which nodes exist."""
        return self.scores > -torch.inf

    @property
    def levels(self) -> Tensor:
        """(images,) depth of each image's deepest node."""
        return (self.depths * self.present).amax(1)

    @cached_property  # read first where a round scores the tree, so that a replay renews it
    def visible(self) -> Tensor:
        """(images, 1 + nodes, 1 + nodes) bool: entry [i, a, b] says that b is a or its ancestor."""
        count = self.nodes + 1
        if self.chain:
            slot = arange(count, self.tokens.device)
            return (slot[:, None] >= slot).expand(len(self.tokens), -1, -1)
        # in floats, because torch multiplies no matrices of bool
        reach = torch.zeros(len(self.tokens), count, count, device=self.tokens.device)
        reach.scatter_(2, self.parents[..., None], 1.0)
        reach.diagonal(dim1=1, dim2=2).fill_(1.0)
        # squaring the relation doubles the distance that it reaches
        # height 0 is a case of its own, because (-1).bit_length() is 1
        for doublings in range(1, 1 + (self.height - 1).bit_length() if self.height else 1):
            reach = reach @ reach
            if doublings > 6:  # below, the numbers of ways stay under 1e38
                reach.clamp_(max=1.0)
        return reach > 0

    def path_to(self, node: Tensor) -> Tensor:
        """Return (images, 1 + nodes) bool: one node (images, 1) per image and its ancestors."""
        return self.visible.gather(1, node[..., None].expand(-1, -1, 1 + self.nodes))[:, 0]

    def keep(self, kept: Tensor, scores: Tensor) -> "DraftTree":
        """Return the tree of some of its nodes.

        kept: (images, n) indices, ascending and without the root; with every node its parent.
        scores: (images, n) of the kept nodes.
        """
        index = torch.cat([torch.zeros_like(kept[:, :1]), kept], 1)
        # the new index of a parent is its rank among the kept nodes
        parents = torch.searchsorted(index, self.parents.gather(1, index))
        log_q = self.log_q
        if log_q is not None:
            log_q = rows_at(log_q, index)
        return replace(
            self,
            tokens=self.tokens.gather(1, index),
            parents=parents,
            depths=self.depths.gather(1, index),
            scores=torch.cat([self.scores[:, :1], scores], 1),
            height=min(self.height, kept.shape[1]),  # n nodes make no longer path
            log_q=log_q,
        )
