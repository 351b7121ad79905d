"""Where the images of a round stand: numbers of the host, brought to the device in one copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from decoding.policies.base import Limits, Shape, TreePlan, largest_of
from decoding.transfer import on_device

NO_TREE = Shape(0, 0, 0)  # of plain decoding


@dataclass(frozen=True)
class Line:
    """One image's numbers: its last decided code, how many image tokens are decided, the committed
    slots of the target's KV cache, the key of the noise that this round draws children with, and
    the shape of its tree.
    """

    code: int
    decided: int
    length: int
    stream: int = 0
    shape: Shape = NO_TREE


@dataclass(frozen=True)
class Sizes:
    """What the host knows of a round, and a recorded round is made for.

    largest: of the trees. visible: slots of the cache that attention reads; None for those in use.
    uniform: whether all trees have the size `largest`.
    """

    images: int
    largest: Shape
    visible: int | None = None
    uniform: bool = False

    @property
    def fixed(self) -> bool:
        """Whether the round is recorded, or replayed from a record."""
        return self.visible is not None


@dataclass(frozen=True)
class Start:
    """Where the images of a round stand, on the device.

    table: (images, 9) as of `table_of`. lines: the host's numbers; empty in a round that is
    recorded, since they differ when it is replayed.
    """

    table: Tensor
    sizes: Sizes
    lines: tuple[Line, ...] = ()

    @classmethod
    def of(cls, lines: Sequence[Line], device: torch.device) -> "Start":
        """Return where images stand, on a device, for a round that is not recorded."""
        shapes = [line.shape for line in lines]
        uniform = all(shape == shapes[0] for shape in shapes)
        sizes = Sizes(len(lines), largest_of(shapes), uniform=uniform)
        return cls(table_of(lines, device), sizes, tuple(lines))

    @property
    def codes(self) -> Tensor:
        """(images,) the last decided ones."""
        return self.table[:, 0]

    @cached_property
    def decided(self) -> Tensor:
        """(images, 1) decided image tokens, the position of the next one."""
        return self.table[:, 1:2]

    @property
    def lengths(self) -> Tensor:
        """(images,) committed slots."""
        return self.table[:, 2]

    @property
    def streams(self) -> Tensor:
        """(images, 1) keys of noise."""
        return self.table[:, 3:4]

    @property
    def plan(self) -> TreePlan:
        """The shapes of the trees."""
        limits = Limits.unpack(self.table[:, 4:].split(1, 1))
        return TreePlan(self.sizes.largest, limits, self.sizes.uniform, self.sizes.fixed)

    @property
    def roots(self) -> list[int]:
        """The image positions of the trees' roots, on the host."""
        return [line.decided - 1 for line in self.lines]


def table_of(lines: Sequence[Line], device: torch.device) -> Tensor:
    """Return the numbers (images, 9) of all images on the device."""
    numbers = [(e.code, e.decided, e.length, e.stream, *Limits.line(e.shape)) for e in lines]
    return on_device(numbers, device)
