"""What a round came to: measured on the device, brought to the host in one transfer."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class RoundFigures:
    """One image's round, as numbers of the host.

    accepted: accepted length, in draft tokens. levels, nodes: of the verified tree, its root not
    counted. confidence: mean probability per level (geometric) along the best path to the deepest
    level, by the tree's own scores. expected: accepted length that the scores promised. top1: the
    target's greatest probability at each of the accepted + 1 positions that the round decided.
    codes: those that it decided there.
    """

    accepted: int
    levels: int
    nodes: int
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
    return figures_of(measured(tree, verdict, log_p), sources, verdict.complaint)


def measured(tree: DraftTree, verdict: Verdict, log_p: Tensor) -> Tensor:
    """Return what the host wants to know of a round, a row of fp64 numbers per image.

    log_p: (images, 1 + nodes, vocab) the target's distributions after every node.
    """
    likeliest = log_p.amax(-1)  # (images, 1 + nodes); NaN where a distribution contains one
    levels = tree.levels
    deepest = tree.scores.masked_fill(tree.depths != levels[:, None], -torch.inf).amax(1)
    columns = [
        tree.scores.isnan().any(1),
        likeliest.isnan().any(1),
        torch.zeros_like(levels) if verdict.emptied is None else verdict.emptied,
        verdict.accepted,
        levels,
        tree.present.sum(1) - 1,
        (deepest / levels.clamp(min=1)).exp(),
        tree.scores.exp().sum(1) - 1,
    ]
    along = likeliest.gather(1, verdict.path).exp()  # (images, 1 + nodes), path first
    rows = torch.stack([column.double() for column in columns], 1)
    return torch.cat([rows, along.double(), verdict.emitted.double()], 1)


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
    figures = []
    for row in to_host(measured):
        broken_draft, broken_target, emptied = row[:3]
        refuse_nan(bool(broken_draft), sources.drafter)
        refuse_nan(bool(broken_target), sources.target)
        if emptied:
            raise FloatingPointError(complaint)
        accepted, depth, nodes = map(int, row[3:6])
        confidence, expected, *rest = row[6:]
        top1, codes = rest[: accepted + 1], rest[len(rest) // 2 :][: accepted + 1]
        line = accepted, depth, nodes, confidence, expected, tuple(top1), tuple(map(int, codes))
        figures.append(RoundFigures(*line))
    return figures


def refuse_nan(found: bool, model: str) -> None:
    """Raise a FloatingPointError if a model's distribution contains NaN: it decides nothing."""
    if found:
        raise FloatingPointError(
            f"{model}: found NaN in its distribution of the next token; allowed: finite weights, "
            "and a --dtype in which its values do not overflow"
        )
