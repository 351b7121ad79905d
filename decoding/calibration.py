"""How far a drafter's values can be trusted: temperature scaling (Guo et al., arXiv 1706.04599) of path scores.

A candidate's estimated hit probability is the softmax of a times the values it is ranked by. One number a per tree
level, fitted on held-out images: below 1 where the values promise too much, above 1 where they promise too little.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from decoding.sampling import SamplingDistribution

FILE = "calibration.json"  # beside the drafter's weights
LEAST, MOST = 0.01, 100.0  # factors


@dataclass(frozen=True)
class Calibration:
    """The factor a of each level, the last one for all deeper levels."""

    factors: tuple[float, ...] = (1.0,)

    def at(self, level: int) -> float:
        """The factor of a level, from 1."""
        return self.factors[min(level, len(self.factors)) - 1]


def fit_factor(values: Tensor, choices: Tensor, steps: int = 30) -> float:
    """The factor, within [0.01, 100], under which softmax(a values) makes the choices likeliest.

    Args:
        values: (n, vocab) log q, or log q plus the noise; -inf where top-k or top-p cut it, not at the choices.
        choices: (n,) the target's tokens.
        steps: Newton's steps; the likelihood is concave in a.
    """
    values = values.double().clamp(min=-1e4)
    chosen, factor = values.gather(1, choices[:, None])[:, 0], 1.0
    for _ in range(steps):
        weights = (factor * values).softmax(-1)
        expected = (weights * values).sum(-1)
        slope = (chosen - expected).mean()
        curvature = ((weights * values.square()).sum(-1) - expected.square()).mean()
        factor = min(
            max(factor + float(slope / curvature.clamp_min(1e-12)), factor / 2), factor * 2
        )
        factor = min(max(factor, LEAST), MOST)
    return factor


def distribution_key(distribution: SamplingDistribution) -> str:
    """The name of a law in a calibration file; at temperature 0 the cuts do not count."""
    cuts = (
        "" if distribution.greedy else f" top_k={distribution.top_k} top_p={distribution.top_p:g}"
    )
    return f"temperature={distribution.temperature:g}{cuts} cfg={distribution.cfg:g}"


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
        except ValueError as error:
            raise ValueError(f"cannot read {path}: {error}") from error
        for distribution, proposals in _entries(path, "the file", factors):
            for proposal, levels in _entries(path, distribution, proposals):
                if not isinstance(levels, list) or not all(_is_factor(level) for level in levels):
                    raise ValueError(
                        f"{path}: {distribution}, {proposal}: found {levels!r}, allowed: factors {LEAST} to {MOST}"
                    )
        return Calibrations(factors)

    def of(self, distribution: SamplingDistribution, proposal: str) -> Calibration:
        """The calibration of a law and a proposal; factors of 1 if there is none."""
        return Calibration(
            tuple(self.factors.get(distribution_key(distribution), {}).get(proposal, [])) or (1.0,)
        )


def _entries(path: Path, name: str, content: object) -> Iterable[tuple[str, object]]:
    if not isinstance(content, dict):
        raise ValueError(f"{path}: {name} holds {content!r}, allowed: a JSON object")
    return content.items()


def _is_factor(value: object) -> bool:
    return isinstance(value, (int, float)) and LEAST <= value <= MOST


UNCALIBRATED = Calibrations()
