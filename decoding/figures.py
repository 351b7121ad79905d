"""What a round came to: measured on the device, brought to the host in one transfer."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.transfer import to_host
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict


@dataclass(frozen=True)
class Sources:
    """How errors call the two models: their flags and folders, where these are known."""

    target: str = "the target"
    drafter: str = "the drafter"


class RoundFigures(NamedTuple):
    """One image's round, as numbers of the host.

    accepted: accepted length, in draft tokens. levels, nodes: of the verified tree, its root not
    counted. drafted: levels that were grown for it, where a policy sizes trees. confidence: mean
    probability per level (geometric) along the best path to the deepest level, by the tree's own
    scores. expected: accepted length that the scores promised. top1: the target's greatest
    probability at each of the accepted + 1 positions that the round decided. codes: those that it
    decided there.
    """

    accepted: int
    levels: int
    nodes: int
    drafted: int
    confidence: float
    expected: float
    top1: tuple[float, ...]
    codes: tuple[int, ...]

    @property
    def decided(self) -> int:
        """Image tokens that the round decided: the accepted ones and the bonus token."""
        return self.accepted + 1


def read_figures(
    tree: DraftTree, verdict: Verdict, log_p: Tensor, sources: Sources
) -> list[RoundFigures]:
    """Return the figures of every image; waits for the device, the only time in a round.

    Arguments as for `measured`, errors as of `figures_of`.
    """
    if (found := verdict.figures) is not None:
        if tree.grown is not None:
            found[:, 2:3] = tree.grown
        return [_known(row, sources) for row in to_host(found)]
    return figures_of(measured(tree, verdict, log_p), sources)


def measured(tree: DraftTree, verdict: Verdict, log_p: Tensor) -> Tensor:
    """Return what the host's figures come from: (images, 2 + 5 (1 + nodes)) fp64 numbers.

    log_p: (images, 1 + nodes, vocab) the target's distributions after every node.
    """
    likeliest = log_p.amax(-1)  # (images, 1 + nodes); NaN where a distribution contains one
    drafted = tree.depths[:, :1] if tree.grown is None else tree.grown  # 0 where nobody asks
    columns = [
        verdict.accepted[:, None], drafted, verdict.path, verdict.emitted,
        tree.scores, tree.depths, likeliest,
    ]  # fmt: skip
    return torch.cat([columns[0].double(), *columns[1:]], 1)  # all take the widest type


def figures_of(measured: Tensor, sources: Sources) -> list[RoundFigures]:
    """Return the figures of every image; waits for the device, the only time in a round.

    Args:
        measured: of the round.
        sources: how errors call the models.

    Raises:
        FloatingPointError: a distribution contains NaN; names the model and its folder.
    """
    figures = []
    for accepted, drafted, *rest in to_host(measured):
        n = len(rest) // 5
        path, codes, scores, depths, likeliest = (rest[i : i + n] for i in range(0, 5 * n, n))
        refuse_nan(math.isnan(sum(scores)), sources.drafter)  # they are at most 0
        refuse_nan(math.isnan(sum(likeliest)), sources.target)
        nodes = [
            (depth, score) for depth, score in zip(depths, scores, strict=True) if score > -math.inf
        ]
        (levels, deepest), count = max(nodes), int(accepted) + 1
        figures.append(
            RoundFigures(
                accepted=count - 1,
                levels=int(levels),
                nodes=len(nodes) - 1,
                drafted=int(drafted),
                confidence=math.exp(deepest / max(levels, 1)),
                expected=math.fsum(map(math.exp, scores)) - 1,
                top1=tuple(math.exp(likeliest[int(node)]) for node in path[:count]),
                codes=tuple(map(int, codes[:count])),
            )
        )
    return figures


def _known(row: list[float], sources: Sources) -> RoundFigures:
    """Return the figures of an image, a row of `Verdict.figures`; errors as of `figures_of`."""
    accepted, broken, drafted, levels, nodes, confidence, expected, *rest = row
    refuse_nan(broken == 1, sources.drafter)
    refuse_nan(broken == 2, sources.target)
    count, n = int(accepted) + 1, len(rest) // 2
    return RoundFigures(
        accepted=count - 1,
        levels=int(levels),
        nodes=int(nodes),
        drafted=int(drafted),
        confidence=confidence,
        expected=expected,
        top1=tuple(rest[n : n + count]),
        codes=tuple(map(int, rest[:count])),
    )


def refuse_nan(found: bool, model: str) -> None:
    """Raise a FloatingPointError if a model's distribution contains NaN: it decides nothing."""
    if found:
        raise FloatingPointError(
            f"{model}: found NaN in its distribution of the next token; allowed: finite weights, "
            "and a --dtype in which its values do not overflow"
        )
