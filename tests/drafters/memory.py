"""Rounds of drafters that remember what the target predicted, without an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decoding.graphs import RoundShape, TreeShape
from decoding.round import AcceptedTokens, ImageInputs, Round, RoundInputs, RoundResult
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.jacobi import JacobiDrafter


def tree_of(tokens: list[int], parents: list[int], absent: tuple[int, ...] = ()) -> DraftTree:
    """The tree of one image."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    scores = torch.zeros(1, len(tokens), dtype=torch.float64)
    scores[:, list(absent)] = -torch.inf
    columns = (torch.tensor([values]) for values in (tokens, parents, depths))
    return DraftTree(*columns, scores, height=max(depths), width=len(tokens))


def batched(tree: DraftTree, images: int) -> DraftTree:
    """The same tree for several images."""
    names = "tokens", "parents", "depths", "scores"
    columns = {name: getattr(tree, name).expand(images, -1).clone() for name in names}
    return replace(tree, **columns)


def verdict_of(
    paths: list[list[int]], nodes: int, tree: DraftTree | None = None, bonus: tuple[int, ...] = ()
) -> Verdict:
    """The accepted paths, from the root on; other entries are rubbish. nodes: with the root.

    bonus: of every image, after the tokens of its path.
    """
    padded = torch.tensor([path + [nodes - 1] * (nodes - len(path)) for path in paths])
    accepted = torch.tensor([len(path) - 1 for path in paths])
    emitted = padded
    if tree is not None:
        emitted = tree.tokens.gather(1, padded).roll(-1, 1)
        emitted = emitted.scatter(1, accepted[:, None], torch.tensor(bonus)[:, None])
    return Verdict(accepted, padded, emitted)


@dataclass
class Rounds:
    """A drafter, and how many tokens each image has decided."""

    drafter: JacobiDrafter
    decided: list[int]

    def round(self) -> Round:
        """The next round, whose trees are as deep as the drafter allows."""
        largest = self.drafter.largest
        shape = TreeShape(largest.reach, 3, largest.nodes, largest.reach)
        inputs = [ImageInputs(0, count, count, 1, 0, *shape) for count in self.decided]
        sizes = RoundShape(len(inputs), *shape, 1, max(self.decided))
        return Round(sizes, RoundInputs(torch.tensor(RoundInputs.rows(inputs))), None)

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        counts = verdict.accepted[:, None] + 1
        accepted = AcceptedTokens(verdict.path, verdict.emitted, counts)
        self.drafter.update(RoundResult(self.round(), tree, None, None, log_p, verdict, accepted))
        self.decided = [a + int(b) for a, b in zip(self.decided, counts, strict=True)]

    def ahead(self) -> Tensor:
        """log q (images, reach, vocab) of the next positions."""
        return self.drafter.predict_ahead(self.round()).log_q

    def names(self) -> list[float]:
        """The first entries of the first image's distributions."""
        return self.ahead()[0, :, 0].tolist()


def rounds_of(drafter: JacobiDrafter) -> Rounds:
    return Rounds(drafter, [1] * len(drafter.reached))
