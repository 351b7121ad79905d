"""The noise of the images in flight: tables on the device, which rounds read by position."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.noise import ACCEPTING, HostNoise, NoiseShape, gumbel, gumbel_of, stream_key
from support.constants import arange

_POSITION_BITS = 16  # of a counter; what stands above them tells apart nodes of one position
# Numbers that are computed at a time, in fp64: few launches on a GPU, a CPU's cache (four times as
# fast as the other on an EPYC).
_TOGETHER, _CACHED = 2**22, 2**16


@dataclass(frozen=True)
class NodeNoise:
    """The noise at the positions after the nodes of trees, for the rules that judge them."""

    noise: "NoiseTable"
    depths: Tensor  # (images, 1 + nodes) of the nodes
    decided: Tensor  # (images, 1) the positions after the roots
    ahead: Tensor | None = None  # (images, 1 + nodes, vocab) the target's, if it was read already

    def target(self) -> Tensor:
        """Return the target's noise (images, 1 + nodes, vocab), with 1 for vocab if greedy."""
        if self.ahead is not None:
            return self.ahead
        return self.noise(self.depths + self.decided)

    def images(self) -> list[HostNoise]:
        """Return every image's noise for the host."""
        numbers = zip(self.noise.seeds, self.decided[:, 0].tolist(), strict=True)
        return [HostNoise(seed, decided, self.noise.shape) for seed, decided in numbers]


class NoiseTable:
    """Holds the target's noise of the images in flight: a table per image, read by position.

    Row p % rows of a table is position p's: while an image is decoded, the noise of later positions
    takes the rows of decided ones.
    """

    def __init__(self, shape: NoiseShape, images: int):
        self.shape, self.rows = shape, shape.rows
        size = (images, self.rows, 1 if shape.greedy else shape.width)
        self.table = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        self.seeds = [0] * images
        # of the streams `accept` and `residual`, for rules that judge on the device
        self.keys = torch.zeros(images, 2, dtype=torch.long, device=shape.device)
        self.made = [0] * images  # positions whose noise was made, from the first on

    def fill(self, image: int, seed: int) -> None:
        """Fill an image's table with the noise of its seed, from the first position on."""
        self.seeds[image], self.made[image] = seed, 0
        self.keys[image] = torch.tensor([stream_key(seed, role) for role in ACCEPTING])
        self._make(image, 0)

    def keep_ahead(self, decided: Sequence[int]) -> None:
        """Make the noise that the next round reads; decided: tokens of every image that are."""
        reach = self.shape.reach
        if reach is None or self.rows == self.shape.positions:
            return
        for image, count in enumerate(decided):
            if self.made[image] < min(count + reach, self.shape.positions):
                self._make(image, count)

    def _make(self, image: int, decided: int) -> None:
        """Fill the rows of all positions that an image has decided with later ones' noise."""
        stop = min(decided + self.rows, self.shape.positions)
        if not self.shape.greedy:
            positions = torch.arange(self.made[image], stop, device=self.shape.device)
            together = _CACHED if self.shape.device.type == "cpu" else _TOGETHER
            for chunk in positions.split(max(1, together // self.shape.width)):
                noise = gumbel(self.seeds[image], "target", chunk, self.shape.width)
                self.table[image, chunk % self.rows] = noise.to(self.table.dtype)
        self.made[image] = stop

    def __call__(self, positions: Tensor) -> Tensor:
        """Return noise (images, n, vocab) at positions (images, n); (images, n, 1) zeros if greedy.

        Positions after the image's last one read that of the last one.
        """
        images, rows = len(positions), self.rows
        index = positions.clamp(max=self.shape.positions - 1)
        if rows < self.shape.positions:
            index %= rows
        if images > 1:  # a launch less for a single one
            index += arange(images, positions.device)[:, None] * rows
        return F.embedding(index, self.table.flatten(0, 1))

    def draft(self, keys: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Return the noise (images, n, vocab) that samples the children of n nodes.

        Children of two nodes never share a number, which rules that judge a node by its
        descendants depend on: cousins have to be independent draws.

        Args:
            keys: (images, 1) of the round's streams.
            positions: (images, n) image positions of the children.
            parents: (n,) or (1,) ranks of the nodes among those that are expanded into one level. A
                node's rank does not depend on the other images of the batch, as its index does.
        """
        if self.shape.greedy:
            return self.table.new_zeros(len(positions), len(parents), 1)
        counters = positions + (parents << _POSITION_BITS)
        return gumbel_of(keys[..., None], counters, self.shape.width).to(self.shape.dtype)
