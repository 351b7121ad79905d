"""What a round came to: measured on the device, brought to the host in one transfer."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.transfer import may_ask, to_host
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict


@dataclass(frozen=True)
class Sources:
    """How errors call the two models: their flags and folders, where these are known."""

    target: str = "the target"
    drafter: str = "the drafter"


@dataclass(frozen=True)
class RoundFigures:
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
    if not may_ask(log_p):
        return figures_of(measured(tree, verdict, log_p), sources, verdict.complaint)
    columns = [column.tolist() for column in _columns(tree, verdict, log_p)]
    none = [False] * len(log_p)
    drafted = none if tree.grown is None else tree.grown[:, 0].tolist()
    emptied = none if verdict.emptied is None else verdict.emptied.tolist()
    counts = zip(verdict.accepted.tolist(), emptied, drafted, strict=True)
    return _figures(zip(counts, *columns, strict=True), sources, verdict.complaint)


def measured(tree: DraftTree, verdict: Verdict, log_p: Tensor) -> Tensor:
    """Return what the host's figures come from: (images, 3 + 5 (1 + nodes)) fp64 numbers.

    log_p: (images, 1 + nodes, vocab) the target's distributions after every node.
    """
    emptied = verdict.accepted < 0 if verdict.emptied is None else verdict.emptied
    drafted = tree.depths[:, :1] if tree.grown is None else tree.grown  # 0 where nobody asks
    counts = verdict.accepted[:, None].double(), emptied[:, None], drafted
    return torch.cat([*counts, *_columns(tree, verdict, log_p)], 1)  # all take the widest type


def _columns(tree: DraftTree, verdict: Verdict, log_p: Tensor) -> tuple[Tensor, ...]:
    """Return what figures say of every node: (images, 1 + nodes) each."""
    likeliest = verdict.likeliest
    if likeliest is None:
        likeliest = log_p.amax(-1)  # NaN where a distribution contains one
    return verdict.path, verdict.emitted, tree.scores, tree.depths, likeliest


def figures_of(measured: Tensor, sources: Sources, complaint: str) -> list[RoundFigures]:
    """Return the figures of every image; waits for the device, the only time in a round.

    Args:
        measured: of the round.
        sources: how errors call the models.
        complaint: what to say if the verifier had no token left to draw.

    Raises:
        FloatingPointError: a distribution contains NaN; names the model and its folder. Or the
            verifier had no token left to draw.
    """
    rows, n = to_host(measured), measured.shape[1] // 5
    split = ((row[:3], *(row[i : i + n] for i in range(3, 3 + 5 * n, n))) for row in rows)
    return _figures(split, sources, complaint)


def _figures(rows: Iterable[Sequence], sources: Sources, complaint: str) -> list[RoundFigures]:
    """Return what `figures_of` does.

    rows: of every image the accepted length, whether its rule had no token left, and the levels
    grown; then the numbers of `_columns`.
    """
    figures = []
    for (accepted, emptied, drafted), path, codes, scores, depths, likeliest in rows:
        refuse_nan(any(map(math.isnan, scores)), sources.drafter)
        refuse_nan(any(map(math.isnan, likeliest)), sources.target)
        if emptied:
            raise FloatingPointError(complaint)
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


def refuse_nan(found: bool, model: str) -> None:
    """Raise a FloatingPointError if a model's distribution contains NaN: it decides nothing."""
    if found:
        raise FloatingPointError(
            f"{model}: found NaN in its distribution of the next token; allowed: finite weights, "
            "and a --dtype in which its values do not overflow"
        )
