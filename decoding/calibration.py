"""How far a drafter's probabilities can be trusted: temperature scaling (arXiv 1706.04599).

A tree ranks candidates by a value, log q or log q plus noise, and needs the probability that the
target chooses each of them. The estimate is softmax(a * values). The factor a is fitted per tree
level on images that the drafter was not trained on: below 1 where the values promise too much,
above 1 where they promise too little. It changes the shape of trees, never the decided tokens.
"""

from dataclasses import dataclass

from torch import Tensor

LEAST, MOST = 0.01, 100.0  # bounds of a factor


@dataclass(frozen=True)
class Calibration:
    """The factor a of every tree level; deeper levels take the last one."""

    factors: tuple[float, ...] = (1.0,)

    def at(self, level: int) -> float:
        """Return the factor of a level, counted from 1."""
        return self.factors[min(level, len(self.factors)) - 1]


def fit_factor(values: Tensor, choices: Tensor, steps: int = 30) -> float:
    """Return the factor a, within [LEAST, MOST], that makes the target's choices likeliest.

    Args:
        values: (n, vocab) log q, or log q plus noise; -inf where top-k or top-p cut a token, which
            must not be a chosen one.
        choices: (n,) the target's tokens.
        steps: Newton steps; the likelihood under softmax(a * values) is concave in a.
    """
    values = values.double().clamp(min=-1e4)
    chosen, factor = values.gather(1, choices[:, None])[:, 0], 1.0
    for _ in range(steps):
        weights = (factor * values).softmax(-1)
        expected = (weights * values).sum(-1)
        slope = (chosen - expected).mean()
        curvature = ((weights * values.square()).sum(-1) - expected.square()).mean()
        step = float(slope / curvature.clamp_min(1e-12))
        factor = min(max(factor + step, factor / 2), factor * 2)
        factor = min(max(factor, LEAST), MOST)
    return factor
