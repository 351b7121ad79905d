"""Drafts all levels of a tree at once, from a window of candidates for the next positions.

    ahead            0         1         2         3
    best          root ----- a1 ------ a2 ------ a3        candidates of a position stand below
    others                   b1        b2        b3        each other, the likeliest first
                             c1        c2        c3

Which tokens will stand before a position is not decided yet. So a candidate is read after the best
candidates of the positions before it: c2 after root and a1. One pass predicts the distributions
after all candidates. They choose the candidates of the next pass, which reads on along a better
path (Jacobi iteration of the drafter). After the last pass the tree takes its nodes' children from
what the window predicted: those of a node from the candidate with the node's token, or from the
best candidate if none has it. Drafting level by level would follow the tree's own paths, but
launches all operations once per level.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.drafter import Children, TreeDrafter
from decoding.proposals import Predictions, Proposal
from decoding.round import Round
from decoding.sampling import best, choose
from decoding.tree import GrowingTree, hidden_at, rows_at
from drafters.similarity import path_suffixes
from support.compiler import fused
from support.constants import arange

# Over the window. With 1, 2 and 3 passes of a block head, trees of 58 nodes accept 5.28, 5.78 and
# 6.03 tokens (T = 1).
PASSES = 3


@dataclass(frozen=True)
class WindowPass:
    """What a pass predicts after the candidates of a window."""

    codes: Tensor  # (images, positions, candidates), the best first; the root's, repeated, at 0
    log_q: Tensor  # (images, positions, candidates, vocab)
    similarity: Tensor  # (images, positions, candidates) as of `SimilarNodes.weigh`
    sharpness: Tensor  # (images, positions, candidates) as in `Predictions`
    hidden: Tensor | None = None  # (images, guidance, positions, candidates, hidden), by a network


class WindowSource(Protocol):
    """Makes the passes over one round's window."""

    def first(self) -> tuple[Tensor, Tensor | None]:
        """Predict every position before any candidate is known.

        Returns log q (images, positions, vocab) and hidden states (images, guidance, positions,
        hidden) of a network.
        """

    def read(self, codes: Tensor, states: Tensor | None) -> WindowPass:
        """Make a pass.

        Args:
            codes: (images, positions, candidates).
            states: (images, guidance, positions, hidden) predicted so far along the best path, by a
                network.
        """


class WindowDrafter(TreeDrafter):
    """Drafts a round's window in `begin`; growing the tree only looks up what that predicted."""

    candidates: int  # per position
    drafted: "DraftedWindow | None" = None

    @property
    def window(self) -> "DraftedWindow":
        """The last pass over the round's window."""
        assert self.drafted is not None, "`begin` makes it"
        return self.drafted

    def source(self, round: Round) -> WindowSource:
        """Return what makes a round's passes."""
        raise NotImplementedError

    def begin(self, round: Round, proposal: Proposal) -> None:
        # drafts that are sampled must not depend on the noise that the target chooses with
        noise = None if proposal.samples else round.ahead[:, : round.shape.reach]
        source = self.source(round)
        log_q, states = source.first()
        root = round.inputs.code[:, None, None].expand(-1, -1, self.candidates)
        result = source.read(best_candidates(root, log_q, noise), states)
        for _ in range(PASSES - 1):
            codes, path = next_candidates(result.codes, result.log_q, noise)
            if result.hidden is not None:
                states = hidden_at(result.hidden.flatten(2, 3), path)
            result = source.read(codes, states)
        self.drafted = DraftedWindow(round, proposal, result)

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Predictions:
        return self.window.expand(tree, picked)

    def children(
        self, tree: GrowingTree, picked: Tensor, round: Round, proposal: Proposal
    ) -> Children:
        if proposal.samples:  # every parent has noise of its own
            return super().children(tree, picked, round, proposal)
        return self.window.children(tree, picked)


def window_suffixes(codes: Tensor, recent: Tensor) -> Tensor:
    """Return the suffixes of candidates: (images, positions, candidates, SUFFIX).

    Args:
        codes: (images, positions, candidates) as in `WindowPass`.
        recent: (images, SUFFIX) the root's token and those before it.
    """
    path = torch.cat([recent[:, 1:].flip(1), codes[..., 0]], 1)
    older = path_suffixes(path)[:, :, None, 1:].expand(-1, -1, codes.shape[2], -1)
    return torch.cat([codes[..., None], older], 3)


def best_candidates(root: Tensor, log_q: Tensor, noise: Tensor | None) -> Tensor:
    """Return the codes (images, positions, candidates) of a window.

    Args:
        root: (images, 1, candidates) the root's code, repeated.
        log_q: (images, positions, vocab) of the tokens after each position.
        noise: (images, positions, vocab or 1) that the target will choose with; None: not used.
    """
    return torch.cat([root, best(log_q, noise, root.shape[2])[0][:, :-1]], 1)


def next_candidates(codes: Tensor, log_q: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the candidates that a pass predicts for the next one.

    Their best ones follow one another: each is the best token after the one before it. Where that
    one was no candidate of the pass, the pass's best candidate stands for it.

    Args:
        codes: (images, positions, candidates) of the pass.
        log_q: (images, positions, candidates, vocab) after them.
        noise: as for `best_candidates`.

    Returns:
        Codes as in `WindowPass`, and the path that they follow (images, positions): indices into
        the pass's positions x candidates.
    """
    chosen = choose(log_q, None if noise is None else noise[:, :, None])
    path = _follow(index_of(chosen, _next_position(codes)))
    path = path + codes.shape[2] * arange(path.shape[1], path.device)
    return best_candidates(codes[:, :1], rows_at(log_q.flatten(1, 2), path), noise), path


@fused
def _follow(candidates: Tensor) -> Tensor:
    """Return the candidates (images, positions) on a path from the root's first one.

    candidates: (images, positions, candidates) which one of the next position follows each.
    """
    path = [torch.zeros_like(candidates[:, 0, :1])]
    for ahead in range(candidates.shape[1] - 1):
        path.append(candidates[:, ahead].gather(1, path[-1]))
    return torch.cat(path, 1)


def _next_position(codes: Tensor) -> Tensor:
    """Return codes (images, positions, candidates) one position further; zeros at the end."""
    return F.pad(codes[:, 1:], (0, 0, 0, 1))


@fused
def index_of(tokens: Tensor, codes: Tensor) -> Tensor:
    """Return the index of tokens (images, positions, ...) among a position's candidates, or 0.

    codes: (images, positions, candidates).
    """
    codes = codes.view(*codes.shape[:2], *[1] * (tokens.ndim - 2), -1)
    return (tokens[..., None] == codes).long().argmax(-1)


@dataclass
class DraftedWindow:
    """The last pass of a round, from which the tree takes its nodes level by level."""

    round: Round
    proposal: Proposal
    result: WindowPass
    # (images, k, width) candidates that the newest level's nodes are; None: another drafter took
    # that level's children
    newest: Tensor | None = None

    @cached_property
    def _children(self) -> tuple[Tensor, Tensor, Tensor]:
        """The children of all candidates; taken level by level they need ten operations a level.

        Tokens (images, positions, candidates, width), their estimated log-probabilities, and which
        candidates of the next position they are.
        """
        result, shape = self.result, self.round.shape
        noise = self.proposal.noise(self.round, slice(0, shape.reach), 1)
        tokens, log_hits = self.proposal.children(
            Predictions(result.log_q, result.sharpness),
            None if noise is None else noise[:, :, None],
            max(shape.width, 2),
        )
        return tokens, log_hits, index_of(tokens, _next_position(result.codes))

    def look_up(self, tree: GrowingTree, picked: Tensor) -> tuple[Tensor, Tensor]:
        """Return which candidates nodes picked (images, k) of the newest level are, and if any.

        Index 0 and False for a token that is no candidate.
        """
        tokens = tree.newest.tokens.gather(1, picked)
        same = tokens[..., None] == self.result.codes[:, tree.height, None]
        return same.long().argmax(-1), same.any(-1)

    def expand(self, tree: GrowingTree, picked: Tensor) -> Predictions:
        """Return the predictions after nodes picked (images, k) of the newest level."""
        candidates, _ = self.look_up(tree, picked)
        log_q = rows_at(self.result.log_q[:, tree.height], candidates)
        return Predictions(log_q, self.result.sharpness[:, tree.height].gather(1, candidates))

    def children(self, tree: GrowingTree, picked: Tensor) -> Children:
        """Return the children of nodes picked (images, k) of the newest level."""
        ahead, siblings, newest = tree.height, tree.newest.children, self.newest
        if newest is None:
            codes = self.result.codes[:, ahead : ahead + 1]
            newest = index_of(tree.newest.tokens[:, None], codes)
            siblings = newest.shape[2]
        values = tuple(value[:, ahead] for value in self._children)
        candidates, (tokens, log_hits, self.newest) = _below(values, newest, picked, siblings)
        log_q = rows_at(self.result.log_q[:, ahead], candidates) if self.round.keep_q else None
        return Children(tokens, log_hits, log_q)


@fused
def _below(
    values: tuple[Tensor, ...], newest: Tensor, picked: Tensor, siblings: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the candidates (images, k) of nodes picked of a level, and their values.

    Args:
        values: (images, candidates, width) each, of all candidates of the position.
        newest: (images, parents, width) which candidates the children of each parent are.
        picked: (images, k) nodes of the level by their index.
        siblings: that the level has of each parent, side by side.
    """
    candidates = newest[..., :siblings].flatten(1).gather(1, picked)
    return candidates, tuple(rows_at(value, candidates) for value in values)
