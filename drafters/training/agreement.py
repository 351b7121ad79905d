"""How often a drafter's candidates hold the target's choice, per level."""

from typing import Any

import torch
from torch import Tensor, nn

from decoding.noise import gumbel
from decoding.proposals import COMPARED
from decoding.sampling import SamplingDistribution, choose
from drafters.training.losses import Levels, unroll
from drafters.training.rows import Rows
from models.target import TargetModel

PROPOSALS = ("topk", "coupled")
CANDIDATES = (1, 4, 10)
LEVELS = 8  # that have figures, in images of enough tokens


def draft_distributions(
    target: TargetModel,
    head: nn.Module,
    rows: Rows,
    distribution: SamplingDistribution,
    depths: int,
) -> list[Tensor]:
    """Return log q (images, tokens - k, vocab) per tree level k, of the tokens from number k on."""
    levels = Levels.of(target.grid, depths, rows.ids.device)
    return [
        distribution(target.score(features))
        for features in levels.read(unroll(head, rows, levels.depths))
    ]


def target_distribution(
    target: TargetModel, rows: Rows, distribution: SamplingDistribution
) -> Tensor:
    """Return log p (images, tokens - 1, vocab) of the tokens from number 1 on."""
    return distribution(target.score(Levels.of(target.grid, 1, rows.ids.device).wanted(rows)))


class Gathered:
    """Collects a drafter's values and the target's choices by level.

    They are kept on the CPU, since a GPU may not hold those of all images: levels x positions x
    codes x 4 bytes, twice.
    """

    def __init__(self):
        self.levels: dict[int, dict[str, list[Tensor]]] = {}

    def judge(
        self,
        target: TargetModel,
        head: nn.Module,
        rows: Rows,
        distribution: SamplingDistribution,
        depths: int,
        seed: int,
        stride: int = 1,
    ) -> None:
        """Add an image: what a head drafts after its tokens, and what the target chooses there.

        Args:
            target, head: with its drafter.
            rows: of the image.
            distribution: to draft and to choose from.
            depths: levels.
            seed: of the noise that chooses; the one it was decoded with chooses its own tokens.
            stride: of the positions that are added; 1 for all.
        """
        log_p = target_distribution(target, rows, distribution)[0]
        positions = torch.arange(1, len(log_p) + 1, device=log_p.device)
        noise = gumbel(seed, "target", positions, log_p.shape[1]).to(log_p.dtype)
        noise = noise * (not distribution.greedy)  # at temperature 0 the target has none
        drafts = draft_distributions(target, head, rows, distribution, depths)
        for level, log_q in enumerate(drafts, 1):
            # log q of level k begins at token k, the others at token 1
            some = slice(level - 1, None, stride)
            self.add(level, log_q[0, ::stride], log_p[some], noise[some])

    def add(self, level: int, log_q: Tensor, log_p: Tensor, noise: Tensor) -> None:
        """Add n positions of one level.

        Args:
            level: from 1.
            log_q: (n, vocab) the drafter's distributions.
            log_p: (n, vocab) the target's.
            noise: (n, vocab or 1) that the target chooses with; zeros at temperature 0.
        """
        columns = {
            "choices": choose(log_p, noise),
            "topk": log_q,
            "coupled": log_q + noise,
            "total_variation": (log_p.exp() - log_q.exp()).abs().sum(-1) / 2,
        }
        kept = self.levels.setdefault(level, {})
        for name, values in columns.items():
            kept.setdefault(name, []).append(values.cpu())

    def table(self) -> list[dict[str, Any]]:
        """Return a row per level: its number, total variation, and figures of each proposal."""
        rows = []
        for level, kept in self.levels.items():
            apart, choices = torch.cat(kept["total_variation"]), torch.cat(kept["choices"])
            row = {"depth": level, "total_variation": apart.mean().item()}
            rows.append(row | {n: figures(torch.cat(kept[n]), choices) for n in PROPOSALS})
        return rows


def figures(values: Tensor, choices: Tensor) -> dict[str, float]:
    """Return what values (n, vocab) are worth as a ranking of the target's choices (n,).

    hit_k: share of choices among the best k. cut: share of choices that the drafter's top-k or
    top-p excludes.
    """
    hit = values.topk(min(max(CANDIDATES), values.shape[-1]), -1).indices == choices[:, None]
    rates = {f"hit_{k}": hit[:, :k].any(-1).float().mean().item() for k in CANDIDATES}
    excluded = values.gather(1, choices[:, None]) == -torch.inf
    return rates | {"cut": excluded.float().mean().item()}


def compared(values: Tensor, choices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what estimates of `coupled` drafts compare: values, which is chosen, and whether any.

    (n, COMPARED), (n,) and (n,) bool.

    Args:
        values: (n, vocab) log q plus noise.
        choices: (n,) the target's tokens.
    """
    values, codes = values.topk(min(COMPARED, values.shape[-1]), -1)
    chosen = codes == choices[:, None]
    return values, chosen.long().argmax(-1), chosen.any(-1)
