"""Learning rates."""

import math

import torch


def cosine_lr(progress: float, peak: float, warmup: float = 0.02, floor: float = 0.02) -> float:
    """Return the learning rate after a share of a training: linear warm-up, then cosine decay.

    Args:
        progress: share of the training that is done; clipped to [0, 1].
        peak: highest rate, reached at `warmup`.
        warmup: share of the training used by the linear rise.
        floor: last rate as a share of `peak`.
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        # not 0, with which the first update would change nothing
        return peak * max(progress / warmup, 0.01)
    angle = math.pi * (progress - warmup) / (1.0 - warmup)
    return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(angle)))


def set_lr(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every parameter group the learning rate `rate`."""
    for group in optimizer.param_groups:
        group["lr"] = rate
