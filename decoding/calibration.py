"""How far a drafter's values can be trusted: temperature scaling (Guo et al., arXiv 1706.04599) of path scores.

A candidate's estimated hit probability is the softmax of a times the values it is ranked by. One number a per tree
level, fitted on held-out images: below 1 where the drafter is surer than it should be, as it is on deep levels.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from decoding.sampling import SamplingLaw

FILE = "calibration.json"  # beside the drafter's weights


@dataclass(frozen=True)
class Calibration:
    """The factor a of each level, the last one for all deeper levels."""

    factors: tuple[float, ...] = (1.0,)

    def at(self, level: int) -> float:
        """The factor of a level, from 1."""
        return self.factors[min(level, len(self.factors)) - 1]


def fit_factor(values: Tensor, choices: Tensor, steps: int = 30) -> float:
    """The factor under which softmax(a values) makes the choices likeliest.

    Args:
        values: (n, vocab) log q, or log q plus the noise.
        choices: (n,) the target's tokens.
        steps: Newton's steps; the likelihood is concave in a.
    """
    values = values.double().clamp(min=-1e4)  # a law cut by top-k or top-p holds -inf
    chosen, factor = values.gather(1, choices[:, None])[:, 0], 1.0
    for _ in range(steps):
        weights = (factor * values).softmax(-1)
        expected = (weights * values).sum(-1)
        slope = (chosen - expected).mean()
        curvature = ((weights * values.square()).sum(-1) - expected.square()).mean()
        factor = min(max(factor + float(slope / curvature.clamp_min(1e-12)), factor / 2), factor * 2)
    return factor


def law_key(law: SamplingLaw) -> str:
    """The name of a law in a calibration file."""
    return f"temperature={law.temperature:g} top_k={law.top_k} top_p={law.top_p:g} cfg={law.cfg:g}"


@dataclass(frozen=True)
class Calibrations:
    """A drafter's calibrations by law and proposal."""

    factors: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> "Calibrations":
        """The file of a drafter's folder; nothing where there is none. ValueError if it is damaged."""
        path = folder / FILE
        if not path.is_file():
            return Calibrations()
        try:
            factors = json.loads(path.read_text(encoding="utf-8"))
            numbers = [factor for laws in factors.values() for levels in laws.values() for factor in levels]
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"cannot read {path}: {error}") from error
        if not all(isinstance(number, (int, float)) and 0 < number < 1e6 for number in numbers):
            raise ValueError(f"{path}: factors are positive numbers")
        return Calibrations(factors)

    def of(self, law: SamplingLaw, proposal: str) -> Calibration:
        """The calibration of a law and a proposal; factors of 1 if there is none."""
        return Calibration(tuple(self.factors.get(law_key(law), {}).get(proposal, [])) or (1.0,))
