"""Draft trees: candidate continuations of the last decided token, for every image of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.kernels import steps_for


@dataclass(frozen=True)
class DraftTree:
    """One tree per image; index 0 is the root (the last decided token), parents precede children.

    tokens, parents, depths, scores: (images, 1 + nodes). tokens are codes, parents are indices into
    the same row. A score is the logarithm of the estimated probability that the target chooses the
    whole path down to the node; -inf marks an absent node, since images may have fewer nodes than
    others of the batch. height: no node is deeper. newest: nodes of the level grown last, at the
    end. drafted: levels grown. width: no node has more children; None if that was not counted.
    worth: (images, 1 + nodes) tokens that verifying a node yields; None where that is its
    probability. distributions: (images, 1 + nodes, vocab) log q from which a node's children were
    taken; None unless the verifier reads them. by_rank: a level's nodes are in the order of their
    ranks along the path, as in static trees. grown: (images, 1) levels that were grown for an
    image's own tree, which may be fewer; None where nobody asks.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    height: int
    newest: int = 0
    drafted: int = 0
    width: int | None = None
    worth: Tensor | None = None
    distributions: Tensor | None = None
    by_rank: bool = False
    grown: Tensor | None = None

    @staticmethod
    def root(tokens: Tensor, dtype: torch.dtype) -> "DraftTree":
        """Return the trees without nodes over the last decided tokens (images,).

        Its columns may be used again in later rounds: nobody writes them.
        """
        zero = torch.zeros_like(tokens)[:, None]
        return DraftTree(tokens[:, None], zero, zero, zero.to(dtype), height=0, width=0)

    @property
    def nodes(self) -> int:
        """How many nodes a row has, absent ones included, the root not."""
        return self.tokens.shape[1] - 1

    @property
    def chain(self) -> bool:
        """Whether no node has two children, so that every node sees all before it."""
        return self.nodes == 0 or self.width == 1

    @property
    def columns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the trees consist of, as kernels read it."""
        return self.tokens, self.parents, self.depths, self.scores

    @cached_property
    def present(self) -> Tensor:
        """(images, 1 + nodes) bool: which nodes exist."""
        return self.scores > -torch.inf

    @property
    def levels(self) -> Tensor:
        """(images,) depth of each image's deepest node."""
        return (self.depths * self.present).amax(1)

    @cached_property
    def visible(self) -> Tensor:
        """(images, 1 + nodes, 1 + nodes) bool: entry [i, a, b] says that b is a or its ancestor."""
        count = self.nodes + 1
        if count == 1:
            return torch.ones_like(self.tokens, dtype=torch.bool)[..., None]
        if kernels := steps_for(self.scores):
            return kernels.visible(self.parents.contiguous())
        if self.chain:
            seen = torch.ones(count, count, dtype=torch.bool, device=self.tokens.device)
            return seen.tril_().expand(len(self.tokens), -1, -1)
        reach = torch.eye(count, device=self.tokens.device).repeat(len(self.tokens), 1, 1)
        reach.scatter_(2, self.parents[..., None], 1.0)
        # squaring the relation doubles the distance that it reaches
        for doublings in range(1, 1 + self.height.bit_length()):
            reach = reach @ reach
            if doublings > 6:  # else numbers stay below 1e38, the ways to halve 128 steps
                reach.clamp_(max=1.0)
        return reach > 0

    def line(self, node: Tensor) -> Tensor:
        """Return (images, 1 + nodes) bool: one node (images, 1) per image, and its ancestors."""
        return self.visible.gather(1, node[..., None].expand(-1, 1, self.nodes + 1))[:, 0]

    def extend(
        self, nodes: Tensor, tokens: Tensor, scores: Tensor, log_q: Tensor | None = None
    ) -> "DraftTree":
        """Return the tree with a new level: children of nodes (images, k) of the last one.

        tokens, scores: (images, k, c).
        log_q: (images, k, vocab) from which they were taken, if the tree carries distributions.
        """
        parents = nodes.repeat_interleave(tokens.shape[2], 1)
        columns = (
            torch.cat([self.tokens, tokens.flatten(1)], 1),
            torch.cat([self.parents, parents], 1),
            F.pad(self.depths, (0, parents.shape[1]), value=self.height + 1),
            torch.cat([self.scores, scores.flatten(1)], 1),
        )
        return self.with_level(columns, nodes, tokens, log_q)

    def with_level(
        self, columns: Sequence[Tensor], nodes: Tensor, tokens: Tensor, log_q: Tensor | None
    ) -> "DraftTree":
        """Return the tree that consists of these columns; arguments as for `extend`."""
        children, newest = tokens.shape[2], tokens[0].numel()
        return DraftTree(
            *columns,
            height=self.height + 1,
            newest=newest,
            drafted=self.drafted + 1,
            width=None if self.width is None else max(self.width, children),
            distributions=None if log_q is None else self._extended(nodes, log_q, newest),
        )

    def _extended(self, nodes: Tensor, log_q: Tensor, newest: int) -> Tensor:
        """Return the distributions with log_q set at nodes (images, k), and `newest` empty rows."""
        images, _, vocab = log_q.shape
        distributions = (
            log_q.new_zeros(images, 1, vocab) if self.distributions is None else self.distributions
        )
        distributions = torch.cat([distributions, log_q.new_zeros(images, newest, vocab)], 1)
        return distributions.scatter_(1, nodes[..., None].expand_as(log_q), log_q)

    def keep(self, kept: Tensor, scores: Tensor) -> "DraftTree":
        """Return the tree of the nodes `kept` (images, n), with these scores (images, n).

        kept: ascending, and with every node its parent.
        """
        images, count = kept.shape
        root = kept.new_zeros(images, 1)
        place = torch.zeros_like(self.tokens)  # old index -> new index
        place.scatter_(1, kept, torch.arange(1, count + 1, device=kept.device).expand(images, -1))
        index = torch.cat([root, kept], 1)
        parents = place.gather(1, self.parents.gather(1, index))
        scores = torch.cat([self.scores[:, :1], scores], 1)
        distributions = (
            None
            if self.distributions is None
            else self.distributions.gather(
                1, index[..., None].expand(-1, -1, self.distributions.shape[2])
            )
        )
        tokens, depths = (each.gather(1, index) for each in (self.tokens, self.depths))
        return self.of_nodes((tokens, parents, depths, scores), distributions)

    def of_nodes(
        self, columns: Sequence[Tensor], distributions: Tensor | None = None
    ) -> "DraftTree":
        """Return the tree of some of these nodes, which consists of these columns."""
        return DraftTree(
            *columns,
            height=self.height,
            drafted=self.drafted,
            width=self.width,
            distributions=distributions,
        )
