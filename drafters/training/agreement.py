"""How often a drafter's candidates hold the target's choice, per level."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from decoding.noise import gumbel
from decoding.proposals import COMPARED
from decoding.sampling import SamplingDistribution, choose
from drafters.eagle import EagleHead
from drafters.training.losses import DraftLevels, unroll
from drafters.training.rows import Rows
from models.target import TargetModel

CANDIDATES = (1, 4, 10)
LEVELS = 8  # that have figures, in images of enough tokens


def draft_distributions(
    target: TargetModel,
    head: EagleHead,
    rows: Rows,
    distribution: SamplingDistribution,
    depths: int,
) -> list[Tensor]:
    """Return log q (images, tokens - k, vocab) per tree level k, of the tokens from number k on."""
    levels = DraftLevels.of(target.grid, depths, rows.ids.device)
    return [
        distribution(target.score(features))
        for features in levels.read(unroll(head, rows, levels.depths))
    ]


def target_distribution(
    target: TargetModel, rows: Rows, distribution: SamplingDistribution
) -> Tensor:
    """Return log p (images, tokens - 1, vocab) of the tokens from number 1 on."""
    return distribution(
        target.score(DraftLevels.of(target.grid, 1, rows.ids.device).target_features(rows))
    )


class LevelFigures:
    """Collects by level where a drafter's candidates hold the target's choice."""

    def __init__(self) -> None:
        # (level, proposal or "", figure) -> its values (n,) of some positions each
        self.values: defaultdict[tuple[int, str, str], list[Tensor]] = defaultdict(list)

    def add_image(
        self,
        target: TargetModel,
        head: EagleHead,
        rows: Rows,
        distribution: SamplingDistribution,
        depths: int,
        seed: int,
    ) -> None:
        """Add an image: what a head drafts after its tokens, and what the target chooses there.

        seed: of the noise that chooses; the one it was decoded with chooses its own tokens.
        """
        log_p = target_distribution(target, rows, distribution)[0]
        positions = torch.arange(1, len(log_p) + 1, device=log_p.device)
        noise = gumbel(seed, "target", positions, log_p.shape[1]).to(log_p.dtype)
        noise = noise * (not distribution.greedy)  # at temperature 0 the target has none
        drafts = draft_distributions(target, head, rows, distribution, depths)
        for level, log_q in enumerate(drafts, 1):
            # log q of level k begins at token k, the others at token 1
            self.add(level, log_q[0], log_p[level - 1 :], noise[level - 1 :])

    def add(self, level: int, log_q: Tensor, log_p: Tensor, noise: Tensor) -> None:
        """Add n positions of one level, by the distributions (n, vocab) of drafter and target.

        noise: (n, vocab or 1) that the target chooses with; zeros at temperature 0.
        """
        choices = choose(log_p, noise)
        apart = (log_p.exp() - log_q.exp()).abs().sum(-1) / 2
        figures = {
            "topk": held(log_q, choices),
            "coupled": held(log_q + noise, choices),
            "": {"total_variation": apart},
        }
        for proposal, values_of in figures.items():
            for name, values in values_of.items():
                self.values[level, proposal, name].append(values.float().cpu())

    def table(self) -> list[dict[str, Any]]:
        """Return a row per level: its number, total variation, and figures of each proposal."""
        rows: dict[int, dict[str, Any]] = {}
        for (level, proposal, name), values in self.values.items():
            row = rows.setdefault(level, {"depth": level})
            entry = row.setdefault(proposal, {}) if proposal else row
            entry[name] = torch.cat(values).mean().item()
        return list(rows.values())


def held(values: Tensor, choices: Tensor) -> dict[str, Tensor]:
    """Return whether values (n, vocab) as a ranking hold the target's choices (n,): (n,) each.

    hit_k: among the best k. cut: no, since the drafter's top-k or top-p excludes them.
    """
    hit = values.topk(max(CANDIDATES), -1).indices == choices[:, None]
    hits = {f"hit_{k}": hit[:, :k].any(-1) for k in CANDIDATES}
    return hits | {"cut": values.gather(1, choices[:, None])[:, 0] == -torch.inf}


def compared(values: Tensor, choices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what estimates of `coupled` drafts compare: values, which is chosen, and whether any.

    (n, COMPARED), (n,) and (n,) bool, of log q plus noise (n, vocab) and the target's choices (n,).
    """
    values, codes = values.topk(COMPARED, -1)
    chosen = codes == choices[:, None]
    return values, chosen.long().argmax(-1), chosen.any(-1)
