"""A codebook that follows its latents by exponential averages and revives unused codes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def kmeans(points: Tensor, clusters: int, generator: torch.Generator, rounds: int = 12) -> Tensor:
    """Return centres (clusters, d) of points (n, d) by Lloyd's algorithm.

    An empty cluster takes a random point.
    """
    centres = points[torch.randperm(len(points), generator=generator)[:clusters]].clone()
    for _ in range(rounds):
        nearest = torch.cdist(points, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=clusters)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = sums / counts.clamp_min(1).unsqueeze(1)
        empty = counts == 0
        centres[empty] = points[
            torch.randint(len(points), (int(empty.sum()),), generator=generator)
        ]
    return centres


class EmaCodebook(nn.Module):
    """Codes (K, d) without gradients: each is the running mean of the latents nearest to it."""

    def __init__(self, count: int, width: int, decay: float = 0.993) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.zeros(count, width))
        self.register_buffer("sums", torch.zeros(count, width))
        self.register_buffer("counts", torch.zeros(count))
        self.register_buffer("ready", torch.tensor(False))

    def start(self, centres: Tensor) -> None:
        """Fill the codebook; from now on `ready` is true."""
        self.codes.copy_(centres)
        self.sums.copy_(centres)
        self.counts.fill_(1.0)
        self.ready.fill_(True)

    def nearest(self, latents: Tensor) -> Tensor:
        """Return the index of the nearest code, (n,) int64, of each of the latents (n, d)."""
        return (self.codes.square().sum(1) - 2.0 * latents @ self.codes.T).argmin(1)

    def update(self, latents: Tensor, nearest: Tensor) -> None:
        """Move the codes towards the latents (n, d) assigned to them."""
        counts = torch.bincount(nearest, minlength=len(self.counts)).float()
        sums = torch.zeros_like(self.sums).index_add_(0, nearest, latents)
        self.counts.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(sums, 1 - self.decay)
        self.codes.copy_(self.sums / self.counts.clamp_min(1e-4).unsqueeze(1))

    def revive(self, latents: Tensor, generator: torch.Generator, share: float = 0.05) -> int:
        """Put codes used less than `share` of the average onto random latents (n, d); returns how
        many.
        """
        mean = self.counts.mean()
        dead = (self.counts < share * mean).nonzero().flatten()
        picks = torch.randint(len(latents), (len(dead),), generator=generator)
        self.codes[dead] = latents[picks]
        self.counts[dead] = 0.3 * mean
        self.sums[dead] = latents[picks] * (0.3 * mean)
        return len(dead)
