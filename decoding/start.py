"""Where the images of a round stand: numbers of the host, brought to the device in one copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decoding.policies.base import Limits, Shape, TreePlan, largest_of
from decoding.transfer import on_device
from decoding.tree import DraftTree

NO_TREE = Shape(0, 0, 0)  # of plain decoding


class Line(NamedTuple):
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


_PLAIN = Sizes(1, NO_TREE, uniform=True)


class Places:
    """Views of a table (images, 9) of `table_of`: where the images of a round stand.

    codes: (images,) the last decided ones. decided: (images, 1) decided image tokens, the position
    of the next one. lengths: (images,) committed slots. streams: (images, 1) keys of noise.
    """

    def __init__(self, table: Tensor):
        self.codes, self.lengths = table[:, 0], table[:, 2]
        self.decided, self.streams = table[:, 1:2], table[:, 3:4]
        self._limits, self._root = table[:, 4:], None

    def root(self, dtype: torch.dtype) -> DraftTree:
        """Return the trees without nodes; scores are of this type."""
        if self._root is None:
            self._root = DraftTree.root(self.codes, dtype)
        return self._root

    @property
    def limits(self) -> Limits:
        """The shapes of the trees."""
        return Limits.unpack(self._limits.split(1, 1))


class HostTable:
    """A table in the host's memory, for rounds on a CPU: written anew in every round, in place."""

    def __init__(self, images: int):
        width = 4 + len(Limits.line(NO_TREE))
        self.numbers, self.row = np.zeros((images, width), dtype=np.int64), Struct(f"{width}q")
        self.places = Places(torch.from_numpy(self.numbers))

    def write(self, lines: Sequence[Line]) -> Places:
        """Write the numbers of all images; returns where they stand."""
        for row, numbers in enumerate(numbers_of(lines)):
            self.row.pack_into(self.numbers, row * self.row.size, *numbers)
        return self.places


@dataclass(frozen=True)
class Start:
    """The start of a round.

    places: where its images stand, on the device. lines: the host's numbers; empty in a round that
    is recorded, since they differ when it is replayed.
    """

    places: Places
    sizes: Sizes
    lines: tuple[Line, ...] = ()

    @classmethod
    def of(cls, lines: Sequence[Line], places: Places) -> "Start":
        """Return the start of a round that is not recorded."""
        if len(lines) == 1 and lines[0].shape is NO_TREE:
            return cls(places, _PLAIN, tuple(lines))
        shapes = [line.shape for line in lines]
        uniform = all(shape == shapes[0] for shape in shapes)
        return cls(places, Sizes(len(lines), largest_of(shapes), uniform=uniform), tuple(lines))

    @property
    def plan(self) -> TreePlan:
        """The shapes of the trees."""
        sizes = self.sizes
        return TreePlan(sizes.largest, self.places.limits, sizes.uniform, sizes.fixed)

    @property
    def decided(self) -> Tensor:
        """(images, 1) decided image tokens, the position of the next one."""
        return self.places.decided

    @property
    def roots(self) -> list[int]:
        """The image positions of the trees' roots, on the host."""
        return [line.decided - 1 for line in self.lines]


def numbers_of(lines: Sequence[Line]) -> list[tuple[int, ...]]:
    """Return the numbers of all images, a row of the table for each."""
    return [(e.code, e.decided, e.length, e.stream, *Limits.line(e.shape)) for e in lines]


def table_of(lines: Sequence[Line], device: torch.device) -> Tensor:
    """Return the numbers (images, 9) of all images on the device."""
    return on_device(numbers_of(lines), device)
