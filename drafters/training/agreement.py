"""How well a drafter agrees with its target on given images, by tree level and proposal; calibration from that."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decoding.calibration import fit_factor
from decoding.sampling import SamplingDistribution
from drafters.eagle import EagleHead
from drafters.training.losses import Levels, unroll
from drafters.training.rows import Rows
from models.base import TargetModel

PROPOSALS = ("topk", "coupled")
CANDIDATES = (1, 4, 10)


def draft_distributions(
    target: TargetModel,
    head: EagleHead,
    rows: Rows,
    distribution: SamplingDistribution,
    depths: int,
) -> list[Tensor]:
    """log q (images, tokens - k, vocab) per level k, of the tokens from number k on: earlier ones have no such slot."""
    levels = Levels.of(target.grid, depths, rows.ids.device)
    return [
        distribution(target.score(features))
        for features in levels.read(unroll(head, rows, levels.depths))
    ]


def target_distribution(
    target: TargetModel, rows: Rows, distribution: SamplingDistribution
) -> Tensor:
    """log p (images, tokens - 1, vocab) of the tokens from number 1 on."""
    return distribution(target.score(Levels.of(target.grid, 1, rows.ids.device).wanted(rows)))


class Gathered:
    """The drafter's values and the target's choices at every `stride`-th position, level by level, on the CPU.

    They take levels x positions x codes x 4 bytes, twice.
    """

    def __init__(self, stride: int = 1):
        self.stride = stride
        self.values: dict[str, dict[int, list[Tensor]]] = {name: {} for name in PROPOSALS}
        self.choices: dict[int, list[Tensor]] = {}
        self.distances: dict[int, list[Tensor]] = {}

    def add(
        self,
        distributions: Sequence[Tensor],
        choices: Tensor,
        noise: Tensor,
        log_p: Tensor | None = None,
    ) -> None:
        """Add an image.

        Args:
            laws: log q (tokens - k, vocab) per level k.
            choices: (tokens - 1,) the target's tokens from number 1 on.
            noise: (tokens - 1, vocab) they were chosen with; zeros (tokens - 1, 1) at temperature 0.
            log_p: (tokens - 1, vocab) the target's law, for the total variation.
        """
        for level, log_q in enumerate(distributions, 1):
            part = slice(level - 1, None, self.stride)
            log_q = log_q[:: self.stride]
            rows = {"topk": log_q, "coupled": log_q + noise[part]}
            for name, values in rows.items():
                self.values[name].setdefault(level, []).append(values.cpu())
            self.choices.setdefault(level, []).append(choices[part].cpu())
            if log_p is not None:
                apart = (log_p[part].exp() - log_q.exp()).abs().sum(-1) / 2
                self.distances.setdefault(level, []).append(apart.cpu())

    def table(self) -> list[dict[str, Any]]:
        """Per level its number, the total variation where the target's laws are known, and per proposal `figures`."""
        lines = []
        for level, choices in self.choices.items():
            line: dict[str, Any] = {"depth": level}
            if level in self.distances:
                line["total_variation"] = torch.cat(self.distances[level]).mean().item()
            for name in PROPOSALS:
                line[name] = figures(torch.cat(self.values[name][level]), torch.cat(choices))
            lines.append(line)
        return lines


def factors(table: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The entry of a law in calibration.json: per proposal the factor of every level."""
    return {name: [float(f"{line[name]['factor']:.4g}") for line in table] for name in PROPOSALS}


def figures(values: Tensor, choices: Tensor) -> dict[str, float]:
    """Factor, hit rates, share of choices that the drafter's law cuts, and likelihoods of the others, for values
    (n, vocab) and the target's choices (n,)."""
    hit = values.topk(min(max(CANDIDATES), values.shape[-1]), -1).indices == choices[:, None]
    rates = {f"hit_{k}": hit[:, :k].any(-1).float().mean().item() for k in CANDIDATES}
    possible = (
        values.gather(1, choices[:, None])[:, 0] > -torch.inf
    )  # the drafter's top-k or top-p cuts the others
    values, choices = values[possible], choices[possible]
    factor = fit_factor(values, choices)
    likelihood = [
        (a * values).log_softmax(-1).gather(1, choices[:, None]).mean().item()
        for a in (1.0, factor)
    ]
    return {
        "factor": factor,
        **rates,
        "cut": 1 - possible.float().mean().item(),
        "likelihood": likelihood[0],
        "calibrated_likelihood": likelihood[1],
    }
