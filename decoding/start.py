"""Where the images of a round stand: numbers of the host, brought to the device in one copy."""

from collections.abc import Sequence
from dataclasses import dataclass

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

    codes: (images,) the last decided ones. decided: (images, 1) decided image tokens, the position
    of the next one. lengths: (images,) committed slots. streams: (images, 1) keys of noise. plan:
    the shapes of the trees. lines: the host's numbers; empty in a round that is recorded, since
    they differ when it is replayed.
    """

    codes: Tensor
    decided: Tensor
    lengths: Tensor
    streams: Tensor
    plan: TreePlan
    sizes: Sizes
    lines: tuple[Line, ...] = ()

    @classmethod
    def of(cls, lines: Sequence[Line], device: torch.device) -> "Start":
        """Return where images stand, on a device, for a round that is not recorded."""
        shapes = [line.shape for line in lines]
        uniform = all(shape == shapes[0] for shape in shapes)
        sizes = Sizes(len(lines), largest_of(shapes), uniform=uniform)
        return cls.read(table_of(lines, device), sizes, lines)

    @classmethod
    def read(cls, table: Tensor, sizes: Sizes, lines: Sequence[Line] = ()) -> "Start":
        """Return what a table of `table_of` says."""
        codes, decided, lengths, streams, *limits = table.split(1, 1)
        plan = TreePlan(sizes.largest, Limits.unpack(limits), sizes.uniform, sizes.fixed)
        return cls(codes[:, 0], decided, lengths[:, 0], streams, plan, sizes, tuple(lines))

    @property
    def roots(self) -> list[int]:
        """The image positions of the trees' roots, on the host."""
        return [line.decided - 1 for line in self.lines]


def table_of(lines: Sequence[Line], device: torch.device) -> Tensor:
    """Return the numbers (images, 9) of all images on the device."""
    numbers = [(e.code, e.decided, e.length, e.stream, *Limits.line(e.shape)) for e in lines]
    return on_device(numbers, device)
