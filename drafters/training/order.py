"""Which images a step trains on, and its random numbers: functions of seed and step alone."""

import torch
from torch import Tensor

from decoding.seeds import image_seed

_DROPPED = 0.1  # share of images scored without caption, where rows are scored one by one


def generator(seed: int, device: torch.device | str, *use: object) -> torch.Generator:
    """Return the random numbers of one use, such as the order of an epoch."""
    return torch.Generator(device).manual_seed(image_seed(seed, " ".join(map(str, use))))


def batch(seed: int, step: int, size: int, images: int) -> list[int]:
    """Return the numbers, below `images`, of a step's batch: an epoch has every image once."""
    chosen: list[int] = []
    start = step * size
    # a batch may end one epoch and begin the next
    while len(chosen) < size:
        epoch, first = divmod(start + len(chosen), images)
        order = torch.randperm(images, generator=generator(seed, "cpu", "order", epoch))
        chosen += order[first : first + size - len(chosen)].tolist()
    return chosen


def captionless(seed: int, step: int, size: int) -> list[bool]:
    """Return which images of a batch are scored without their caption."""
    drawn = torch.rand(size, generator=generator(seed, "cpu", "captions", step))
    return (drawn < _DROPPED).tolist()


def feature_noise(
    seed: int, step: int, indices: list[int], shape: torch.Size, device: torch.device
) -> Tensor:
    """Return uniform noise in [-1, 1] for the images at some indices of the batch.

    shape: (rows, n, hidden) of all their rows.
    """
    image_shape = (shape[0] // len(indices), *shape[1:])
    # a generator per image: the noise does not depend on how many processes share the batch
    generators = [generator(seed, device, "noise", step, index) for index in indices]
    drawn = [torch.rand(image_shape, generator=random, device=device) for random in generators]
    return torch.cat(drawn).mul_(2).sub_(1)
