"""What a round came to: measured on the device, brought to the host in one transfer."""

from dataclasses import dataclass
from math import exp, inf, isnan
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decoding.round import RoundResult


@dataclass(frozen=True)
class Sources:
    """How errors call the two models: their flags and folders, where these are known."""

    target: str = "the target"
    drafter: str = "the drafter"


class ImageRound(NamedTuple):
    """One image's round, as numbers of the host."""

    accepted: int  # accepted length, in draft tokens
    levels: int  # of the verified tree, its root not counted
    nodes: int
    # geometric mean of the probability per level along the best path to the deepest level, by the
    # tree's own scores
    confidence: float
    top1: tuple[float, ...]  # the target's greatest probability at each decided position
    codes: tuple[int, ...]  # that the round decided: the accepted ones and the bonus token

    @property
    def decided(self) -> int:
        """Image tokens that the round decided."""
        return self.accepted + 1


def summary(result: RoundResult) -> Tensor:
    """Return what the host reads of a round, (images, 1 + 2 (1 + height) + 3 (1 + nodes)) numbers.

    One tensor of the type of probabilities, in which indices and codes below 2^24 are exact.
    """
    tree, verdict = result.tree, result.verdict
    likeliest = result.log_p.amax(-1)  # (images, 1 + nodes); NaN where a distribution contains one
    decided = tree.height + 1
    columns = (
        verdict.accepted[:, None], verdict.path[:, :decided], verdict.emitted[:, :decided],
        tree.scores, tree.depths, likeliest,
    )  # fmt: skip
    return torch.cat(columns, 1)


def read_summary(row: np.ndarray, height: int, sources: Sources) -> ImageRound:
    """Return an image's round from its row of the summary; height: of the round's trees.

    Raises:
        FloatingPointError: a distribution contains NaN; names the model and its folder.
    """
    numbers = iter(row.tolist())
    accepted = int(next(numbers))
    path, codes = ([int(next(numbers)) for _ in range(height + 1)] for _ in range(2))
    nodes = list(numbers)
    scores, depths, likeliest = (nodes[n * len(nodes) // 3 :][: len(nodes) // 3] for n in range(3))
    refuse_nan(any(map(isnan, scores)), sources.drafter)
    refuse_nan(any(map(isnan, likeliest)), sources.target)
    present = [node for node in zip(depths, scores, strict=True) if node[1] > -inf]
    levels, best = max(present)  # the likeliest of the deepest nodes
    return ImageRound(
        accepted,
        int(levels),
        len(present) - 1,
        confidence=exp(best / max(levels, 1)),
        top1=tuple(exp(likeliest[node]) for node in path[: accepted + 1]),
        codes=tuple(codes[: accepted + 1]),
    )


def refuse_nan(contains_nan: bool, model: str) -> None:
    """Raise a FloatingPointError if a model's distribution contains NaN: it decides nothing."""
    if contains_nan:
        raise FloatingPointError(
            f"{model}: expected probabilities of the next token, got NaN. Check that its weights "
            "are finite, and choose a --dtype in which its values do not overflow"
        )
