"""What the tests of distributions rest on: chi-square, and many tests at once."""

from collections.abc import Sequence

import torch
from torch import Tensor


def p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Chi-square p-value of counts (n,) or (groups, n), given how many each group has.

    Outcomes that are expected less than five times are pooled within their group, and left out if
    together they still are too few: the statistic follows its distribution only for larger counts.
    """
    counts, probabilities = torch.atleast_2d(counts), torch.atleast_2d(probabilities)
    assert not counts[probabilities == 0].any(), "impossible outcomes"
    expected = probabilities * counts.sum(1, keepdim=True)
    rare = expected < 5
    counts, expected = (
        torch.cat([numbers * ~rare, (numbers * rare).sum(1, keepdim=True)], 1)
        for numbers in (counts, expected)
    )
    enough = expected >= 5
    freedom = (enough.sum(1) - 1).clamp(min=0).sum()
    if not freedom:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected)[enough].sum()
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def rejected(p_values: Sequence[float], rate: float) -> list[bool]:
    """Return which hypotheses Benjamini and Hochberg's procedure rejects.

    Of those that it rejects, at most `rate` are true on average.
    """
    ordered = sorted(p_values)
    limits = [p for rank, p in enumerate(ordered, 1) if p <= rate * rank / len(ordered)]
    return [p <= max(limits, default=-1.0) for p in p_values]
