"""Rounds of drafters that remember what the target predicted, without an engine."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from fakes import result_of, round_of
from torch import Tensor

from decoding.round import Round, TreeShape
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.jacobi import JacobiDrafter
from models.base import ImageGrid, ImageVocab


def verdict_of(
    paths: list[list[int]], nodes: int, tree: DraftTree | None = None, bonus: tuple[int, ...] = ()
) -> Verdict:
    """The accepted paths, from the root on; nodes: with the root; bonus: token of every image."""
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
    code: int = 0  # the last token that the first image has decided

    def round(self) -> Round:
        """The next round, whose trees are as deep as the drafter allows."""
        largest = self.drafter.largest
        shape = TreeShape(largest.reach, 3, largest.nodes, largest.reach)
        return round_of([shape] * len(self.decided), self.decided, code=self.code)

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        self.drafter.update(result_of(self.round(), tree, log_p, verdict))
        counts = (verdict.accepted + 1).tolist()
        self.code = int(verdict.emitted[0, verdict.accepted[0]])
        self.decided = [sum(pair) for pair in zip(self.decided, counts, strict=True)]

    def ahead(self) -> Tensor:
        """log q (images, reach, vocab) of the next positions."""
        return self.drafter.predict_ahead(self.round()).log_q

    def names(self) -> list[float]:
        """The first entries of the first image's distributions."""
        return self.ahead()[0, :, 0].tolist()


def rounds_of(
    kind: type[JacobiDrafter],
    vocab: ImageVocab,
    largest: TreeShape,
    guess: str = "above",
    embedding: Tensor | None = None,
) -> Rounds:
    """The rounds of a new drafter on an image of 4 x 5 tokens."""
    numbers = {"device": torch.device("cpu"), "dtype": torch.float64}
    parts = {"grid": ImageGrid(4, 5), "vocab": vocab, "embedding": lambda: embedding}
    target = SimpleNamespace(**numbers, **parts)
    drafter = kind(target, guess, largest)
    drafter.open(1, 100, None)
    return Rounds(drafter, [1])
