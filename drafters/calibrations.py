"""calibration.json, next to a drafter's weights: its calibration factors.

A JSON object of objects of lists: {distribution: {proposal: [factor of level 1, 2, ...]}}, where a
distribution is named by `distribution_key`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from configs.fields import mismatch
from configs.methods import FACTOR_BOUNDS
from decoding.proposals import Calibration
from decoding.sampling import SamplingDistribution
from support.json_files import read_object, shortened

FILE = "calibration.json"
LEAST, MOST = FACTOR_BOUNDS


def distribution_key(distribution: SamplingDistribution) -> str:
    """Return the name of a distribution in the file; temperature 0 ignores top-k and top-p."""
    d = distribution
    cuts = "" if d.greedy else f" top_k={d.top_k} top_p={d.top_p:g}"
    # :g writes 1 and 1.0 alike
    return f"temperature={d.temperature:g}{cuts} cfg={d.cfg:g}"


@dataclass(frozen=True)
class Calibrations:
    """A drafter's calibration factors, by distribution and proposal."""

    factors: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> "Calibrations":
        """Return what a drafter's folder holds, empty without the file.

        Raises:
            SettingsError: the file is damaged; names it and the entry.
        """
        path = folder / FILE
        if not path.exists():
            return Calibrations()
        factors = read_object(path)
        for distribution, proposals in factors.items():
            if not isinstance(proposals, dict):
                expected = "a JSON object of lists of factors by proposal"
                _refuse(path, distribution, proposals, expected)
            for proposal, levels in proposals.items():
                if not isinstance(levels, list) or not all(map(_is_factor, levels)):
                    _refuse(path, f"{distribution}, {proposal}", levels, "a list of factors, each "
                            f"from {LEAST} to {MOST}")  # fmt: skip
        return Calibrations(factors)

    def of(self, distribution: SamplingDistribution, proposal: str) -> Calibration:
        """Return the calibration of a distribution and a proposal; factors of 1 if unknown."""
        levels = self.factors.get(distribution_key(distribution), {}).get(proposal)
        return Calibration(tuple(levels)) if levels else Calibration()


UNCALIBRATED = Calibrations()
# Candidates that `coupled` drafts are fitted to: of two to six, factors differ little. Trees take
# three to ten of a node.
CANDIDATES = 4


def _is_factor(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and LEAST <= value <= MOST


def _refuse(path: Path, name: str, value: object, expected: str) -> NoReturn:
    raise mismatch(f"{path}: {name}", shortened(value), expected)


def best_few(values: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best candidates' values (k, CANDIDATES), and which of them is the choice (k,).

    Rows whose choice is none of them are left out: estimates of `coupled` drafts do not heed it.

    Args:
        values: (n, vocab) log q plus noise.
        choices: (n,) the target's tokens.
    """
    values, codes = values.topk(min(CANDIDATES, values.shape[-1]), -1)
    chosen = codes == choices[:, None]
    among = chosen.any(-1)
    return values[among], chosen[among].long().argmax(-1)


def fit_factor(values: Tensor, choices: Tensor) -> float:
    """Return the factor a, within [LEAST, MOST], that makes the target's choices likeliest.

    Args:
        values: (n, tokens) log q, or log q plus noise; -inf where top-k or top-p cut a token, which
            must not be a chosen one.
        choices: (n,) the target's tokens, by their index in the values.
    """
    # finite, because 0 times -inf is NaN
    values = values.double().clamp(min=-1e4)
    chosen, factor = values.gather(1, choices[:, None])[:, 0], 1.0
    for _ in range(30):  # Newton steps: the likelihood under softmax(a * values) is concave in a
        weights = (factor * values).softmax(-1)
        expected = (weights * values).sum(-1)
        slope = (chosen - expected).mean()
        curvature = ((weights * values.square()).sum(-1) - expected.square()).mean()
        step = float(slope / curvature.clamp_min(1e-12))
        # where the curvature is nearly 0, a whole Newton step would lead far away
        before, factor = factor, min(max(factor + step, factor / 2), factor * 2)
        factor = min(max(factor, LEAST), MOST)
        if abs(factor - before) < 1e-7 * factor:
            break
    return factor
