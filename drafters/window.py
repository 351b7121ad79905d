"""Drafts for all levels of a tree at once: after candidates for each of the next positions.

Which tokens will stand before a position is not known yet. So each candidate is read after the best
candidates of the positions before it. Drafting level by level follows a tree's own paths, but
launches all operations once per level.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.device import arange
from decoding.drafter import Draft
from decoding.proposals import Coupled, Proposal
from decoding.round import Round, rows_at
from decoding.tree import GrowingTree
from drafters.similarity import lineage_along
from support.compiler import fused


def lineages(codes: Tensor, recent: Tensor) -> Tensor:
    """Return the last tokens of candidates after the best of earlier steps, their own first.

    (images, steps, candidates, REACH).

    Args:
        codes: (images, steps, candidates), the best first; those of step 0 are the root's.
        recent: (images, REACH) the root's token and those before it.
    """
    path = torch.cat([recent[:, 1:].flip(1), codes[..., 0]], 1)
    older = lineage_along(path)[:, :, None, 1:].expand(-1, -1, codes.shape[2], -1)
    return torch.cat([codes[..., None], older], 3)


def noise_to_see(proposal: Proposal, round: Round, position: Tensor) -> Tensor | None:
    """Return the target's noise (images, steps, vocab or 1) at positions, unless drafts are drawn.

    Those must not depend on it.
    """
    return None if proposal.samples else round.noise(position)


def candidates_after(root: Tensor, log_q: Tensor, noise: Tensor | None) -> Tensor:
    """Return the codes (images, steps, candidates) of a window: the root's, then the best ones.

    Args:
        root: (images, 1, candidates) its code, as often as there are candidates.
        log_q: (images, steps, vocab) of the tokens after each step.
        noise: as of `noise_to_see`.
    """
    values = log_q if noise is None else log_q + noise
    return torch.cat([root, values.topk(root.shape[2], dim=-1).indices[:, :-1]], 1)


def choose_again(codes: Tensor, log_q: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the codes of the window that drafts after the candidates of another one predict.

    The best candidates follow one another: each is the best after the one before it, or after that
    step's best candidate in the other window if the one before it was none there. The second value
    is which slots of the other window, steps x candidates, that path has: (images, steps).

    Args:
        codes: (images, steps, candidates) of the other window.
        log_q: (images, steps, candidates, vocab) after them.
        noise: as of `noise_to_see`.
    """
    best = (log_q if noise is None else log_q + noise[:, :, None]).argmax(-1)
    path = _follow(place_of(best, _next_step(codes)))
    slots = path + codes.shape[2] * arange(path.shape[1], path.device)
    after = rows_at(log_q.flatten(1, 2), slots)
    return candidates_after(codes[:, :1], after, noise), slots


@fused
def _follow(candidates: Tensor) -> Tensor:
    """Return which candidates a path from the root's best one reads: (images, steps).

    candidates: (images, steps, candidates) which one of the next step follows each.
    """
    path = [torch.zeros_like(candidates[:, 0, :1])]
    for step in range(candidates.shape[1] - 1):
        path.append(candidates[:, step].gather(1, path[-1]))
    return torch.cat(path, 1)


def _next_step(codes: Tensor) -> Tensor:
    """Return the candidates of the step after each of codes (images, steps, candidates)."""
    return F.pad(codes[:, 1:], (0, 0, 0, 1))


@fused
def place_of(tokens: Tensor, codes: Tensor) -> Tensor:
    """Return which of codes (images, steps, candidates) tokens (images, steps, ...) are, else 0."""
    codes = codes.view(*codes.shape[:2], *[1] * (tokens.ndim - 2), -1)
    return (tokens[..., None] == codes).long().argmax(-1)


@dataclass
class WindowDrafts:
    """What is drafted after the candidates of a round's window, and read level by level.

    Once `expand` has drafted a level it drafts all below.
    """

    round: Round
    codes: Tensor  # (images, steps, candidates) as in `lineages`
    draft: Draft  # after them: log q (images, steps, candidates, vocab), trust without vocab
    proposal: Proposal
    noise: Tensor | None  # as of `noise_to_see`
    following: Tensor | None = None  # (images, k, width) which candidates the newest level's are

    @cached_property
    def children(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """What the proposal takes, if that depends on positions and candidates alone.

        Taken level by level this would launch ten operations a level.

        Returns:
            Tokens (images, steps, candidates, width), their estimated log-probabilities, and which
            candidate of the next step each is; the best one if none.
        """
        if not isinstance(self.proposal, Coupled):
            return None
        noise, width = self.noise[:, :, None], max(self.round.shape.width, 2)
        tokens, log_hits = self.proposal.children(self.draft, noise, width)
        return tokens, log_hits, place_of(tokens, _next_step(self.codes))

    def expand(self, tree: GrowingTree, picked: Tensor) -> Draft:
        """Return the drafts after nodes picked (images, k) of the newest level."""
        step, siblings, followed = tree.height, tree.newest.children, self.following
        log_q = self.draft.log_q[:, step]
        if followed is None:  # the level's tokens were not taken here
            followed = place_of(tree.newest.tokens[:, None], self.codes[:, step : step + 1])
            siblings = followed.shape[2]
        if self.children is None:
            candidates = followed.flatten(1).gather(1, picked)
            trust = self.draft.trust[:, step].gather(1, candidates)
            return Draft(rows_at(log_q, candidates), trust)
        values = tuple(value[:, step] for value in self.children)
        candidates, (tokens, log_hits, self.following) = _after(values, followed, picked, siblings)
        return Draft(
            rows_at(log_q, candidates) if self.round.keep_q else None, children=(tokens, log_hits)
        )


@fused
def _after(
    values: tuple[Tensor, ...], followed: Tensor, picked: Tensor, siblings: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return which candidates nodes picked (images, k) of a level are, and what stands after these.

    Args:
        values: (images, candidates, width) each, after the step's candidates.
        followed: (images, parents, width) which candidates the children of each parent are.
        picked: nodes of the level by their index.
        siblings: that the level has of each parent, side by side.
    """
    candidates = followed[..., :siblings].flatten(1).gather(1, picked)
    return candidates, tuple(rows_at(value, candidates) for value in values)
