"""Which images a step has, and its chances: functions of the seed and the step alone, whoever computes them."""

import torch
from torch import Tensor

from decoding.noise import image_seed

_DROPPED = 0.1  # share of the rows without their caption, where rows are scored apart


def generator(seed: int, device: torch.device | str, *use: object) -> torch.Generator:
    """Random numbers of one use."""
    return torch.Generator(device).manual_seed(image_seed(seed, " ".join(map(str, use))))


def batch(seed: int, step: int, size: int, images: int) -> list[int]:
    """The numbers, below `images`, of the batch of a step: every image once before one comes again."""
    chosen: list[int] = []
    place = step * size
    while len(chosen) < size:
        epoch, first = divmod(place + len(chosen), images)
        order = torch.randperm(images, generator=generator(seed, "cpu", "order", epoch))
        chosen += order[first : first + size - len(chosen)].tolist()
    return chosen


def captionless(seed: int, step: int, size: int) -> list[bool]:
    """Which images of a batch are scored without their caption."""
    return (
        torch.rand(size, generator=generator(seed, "cpu", "captions", step)) < _DROPPED
    ).tolist()


def feature_noise(
    seed: int, step: int, places: list[int], shape: torch.Size, device: torch.device
) -> Tensor:
    """Uniform noise in [-1, 1] (rows, n, hidden) for the images at some places of the batch; shape: of all rows."""
    each = (shape[0] // len(places), *shape[1:])
    drawn = [
        torch.rand(each, generator=generator(seed, device, "noise", step, p), device=device)
        for p in places
    ]
    return torch.cat(drawn).mul_(2).sub_(1)
