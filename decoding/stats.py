"""What a round came to: measured on the device, brought to the host in one transfer."""

from dataclasses import dataclass
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
    return torch.cat([column.to(likeliest.dtype) for column in columns], 1)


def read_summary(row: np.ndarray, height: int, sources: Sources) -> ImageRound:
    """Return an image's round from its row of the summary; height: of the round's trees.

    Raises:
        FloatingPointError: a distribution contains NaN; names the model and its folder.
    """
    decided = height + 1
    accepted, numbers = int(row[0]), row[1:].astype(np.float64)
    path, codes, nodes = np.split(numbers, [decided, 2 * decided])
    scores, depths, likeliest = nodes.reshape(3, -1)
    refuse_nan(np.isnan(scores).any(), sources.drafter)
    refuse_nan(np.isnan(likeliest).any(), sources.target)
    present = scores > -np.inf
    levels = int(depths[present].max())
    best = scores[present & (depths == levels)].max()
    return ImageRound(
        accepted,
        levels,
        int(present.sum()) - 1,
        confidence=float(np.exp(best / max(levels, 1))),
        top1=tuple(np.exp(likeliest[path[: accepted + 1].astype(int)]).tolist()),
        codes=tuple(codes[: accepted + 1].astype(int).tolist()),
    )


def refuse_nan(contains_nan: bool, model: str) -> None:
    """Raise a FloatingPointError if a model's distribution contains NaN: it decides nothing."""
    if contains_nan:
        raise FloatingPointError(
            f"{model}: found NaN in its distribution of the next token; allowed: finite weights, "
            "and a --dtype in which its values do not overflow"
        )
