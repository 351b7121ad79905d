"""Positional noise: Gumbel numbers that are a pure function of (image seed, role, position, token).

The target samples by adding Gumbel numbers to log p and taking the argmax (Gumbel-max trick). Since
the numbers belong to positions and not to calls, the token after a prefix is a function of the
prefix: the same whatever was drafted, in every batch, on CPU and CUDA (drafter-invariant
speculative decoding, arXiv 2408.07978). That makes every tree exact.

Roles are independent streams. `target` chooses the target's tokens; `accept` and `residual` serve
randomised acceptance on the host (a position is decided once, so no entry is used twice); `draft`
draws the children of a sampling proposal, for every parent node anew.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.device import arange

_GAMMA = (
    0x9E3779B97F4A7C15 - 2**64
)  # SplitMix64's increment and multipliers (Steele et al., OOPSLA 2014), as int64
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def image_seed(base_seed: int, prompt: str, occurrence: int = 0, sample: int = 0) -> int:
    """Return the 63-bit seed of one image, a hash of what tells it from other images.

    Args:
        base_seed: of the command.
        prompt: its text.
        occurrence: which occurrence of the same prompt in the list, from 0.
        sample: which image of that occurrence, from 0.
    """
    return _hash("image", base_seed, prompt, occurrence, sample)


def _hash(*parts: object) -> int:
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 right without its sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def stream_key(seed: int, role: str) -> int:
    """Return the 63-bit key of the stream `role` of an image."""
    return _hash("stream", seed, role)


def random_bits(key: int | Tensor, positions: Tensor, width: int) -> Tensor:
    """Return random int64 (..., width) of a stream at positions (...).

    Counter-based (SplitMix64): a number depends on key, position and column alone.

    key: of the stream, or of each position's, in the shape (..., 1).
    """
    x = positions[..., None] * (1 << 32) + arange(width, positions.device)
    x = x * _GAMMA + key
    for bits, factor in _MIX:
        x = (x ^ _shift_right(x, bits)) * factor
    return x ^ _shift_right(x, 31)


def uniform(key: int | Tensor, positions: Tensor, width: int) -> Tensor:
    """Return uniform numbers of the open interval (0, 1) in fp64, (..., width)."""
    return (_shift_right(random_bits(key, positions, width), 12).double() + 0.5) * 2.0**-52


def uniform_at(key: int, position: int, column: int) -> float:
    """Return the one number `uniform` has there: tensors would take longer than a whole rule."""
    word = 2**64 - 1
    x = (((position << 32) + column) * _GAMMA + key) & word
    for bits, factor in _MIX:
        x = ((x ^ (x >> bits)) * factor) & word
    return (((x ^ (x >> 31)) >> 12) + 0.5) * 2.0**-52


def gumbel(seed: int, role: str, positions: Tensor, width: int) -> Tensor:
    """Return standard Gumbel numbers of an image's stream in fp64, (n, width)."""
    return gumbel_of(stream_key(seed, role), positions, width)


def gumbel_of(key: int | Tensor, positions: Tensor, width: int) -> Tensor:
    """Return standard Gumbel numbers in fp64, (..., width); in fp32 libraries' logarithms differ.

    key: as for `random_bits`.
    """
    return -torch.log(-torch.log(uniform(key, positions, width)))


_POSITION_BITS = 16  # of a counter; what stands above them tells apart nodes of one position
_TABLE_BYTES = 2**26  # of one image; larger tables hold the next positions only
_AHEAD = 64  # least positions that are made at a time
_TOGETHER = 2**22  # numbers that are computed at a time, in fp64


@dataclass(frozen=True)
class NoiseShape:
    """Size, dtype and device of one image's noise; greedy: temperature 0, without noise.

    reach: positions that a round reads at most, from the first undecided one on; None: any.
    """

    positions: int
    width: int
    greedy: bool
    dtype: torch.dtype
    device: torch.device
    reach: int | None = None

    @property
    def rows(self) -> int:
        """Positions that a table holds at a time."""
        if self.greedy or self.reach is None:
            return self.positions
        fitting = _TABLE_BYTES // (self.width * self.dtype.itemsize)
        return min(self.positions, max(self.reach + _AHEAD, fitting))


@dataclass(frozen=True)
class ImageNoise:
    """One image's numbers for rules that judge on the host, each computed when it is asked for.

    They are not read from tables: a rule asks for a few numbers of a vocabulary of thousands.
    """

    seed: int
    decided: int  # image tokens decided: the position of the root's children
    shape: NoiseShape

    @property
    def greedy(self) -> bool:
        return self.shape.greedy

    @cached_property
    def _accept_key(self) -> int:
        return stream_key(self.seed, "accept")

    def accept(self, depth: int, column: int) -> float:
        """Return a uniform number of (0, 1) that decides whether a draft is accepted.

        depth: of the node whose children are judged.
        """
        return uniform_at(self._accept_key, self.decided + depth, column)

    def target(self, depth: int) -> np.ndarray:
        """Return the noise (vocab,) that chooses the target's token after a node of this depth."""
        return gumbel_rows("target", [self], [depth])[0].numpy()


def gumbel_rows(role: str, images: Sequence[ImageNoise], depths: Sequence[int]) -> Tensor:
    """Return Gumbel numbers (images, vocab) after nodes of these depths; (images, 1) if greedy."""
    shape = images[0].shape
    if shape.greedy:
        return torch.zeros(len(images), 1, dtype=shape.dtype)
    keys = torch.tensor([[stream_key(image.seed, role)] for image in images])
    positions = torch.tensor([i.decided + depth for i, depth in zip(images, depths, strict=True)])
    return gumbel_of(keys, positions, shape.width).to(shape.dtype)


@dataclass(frozen=True)
class NodeNoise:
    """The noise at the positions after the nodes of trees (a `Streams`)."""

    noise: "PositionalNoise"
    depths: Tensor  # (images, 1 + nodes) of the nodes
    decided: Tensor  # (images, 1) the positions after the roots
    ahead: Tensor | None = None  # (images, 1 + nodes, vocab) the target's, if it was read already

    def target(self) -> Tensor:
        if self.ahead is not None:
            return self.ahead
        return self.noise(self.depths + self.decided)

    def images(self) -> list[ImageNoise]:
        numbers = zip(self.noise.seeds, self.decided[:, 0].tolist(), strict=True)
        return [ImageNoise(seed, decided, self.noise.shape) for seed, decided in numbers]


class PositionalNoise:
    """Holds the target's noise of the images in flight: a table per image, read by position.

    Row p % rows of a table is position p's: while an image is decoded, the noise of later positions
    takes the rows of decided ones.
    """

    def __init__(self, shape: NoiseShape, images: int):
        self.shape = shape
        size = (images, shape.rows, 1 if shape.greedy else shape.width)
        self.table = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        self.seeds = [0] * images
        self.made = [0] * images  # positions whose noise was made, from the first on

    def fill(self, image: int, seed: int) -> None:
        """Fill an image's table with the noise of its seed, from the first position on."""
        self.seeds[image], self.made[image] = seed, 0
        self._make(image, 0)

    def keep_ahead(self, decided: Sequence[int]) -> None:
        """Make the noise that the next round reads; decided: tokens of every image that are."""
        if self.shape.rows == self.shape.positions:
            return
        for image, count in enumerate(decided):
            if self.made[image] < min(count + self.shape.reach, self.shape.positions):
                self._make(image, count)

    def _make(self, image: int, decided: int) -> None:
        """Fill the rows of all positions that an image has decided with later ones' noise."""
        stop = min(decided + self.shape.rows, self.shape.positions)
        if not self.shape.greedy:
            positions = torch.arange(self.made[image], stop, device=self.shape.device)
            for chunk in positions.split(max(1, _TOGETHER // self.shape.width)):
                noise = gumbel(self.seeds[image], "target", chunk, self.shape.width)
                self.table[image, chunk % self.shape.rows] = noise.to(self.table.dtype)
        self.made[image] = stop

    def __call__(self, positions: Tensor) -> Tensor:
        """Return noise (images, n, vocab) at positions (images, n); (images, n, 1) zeros if greedy.

        Positions after the image's last one read that of the last one.
        """
        images, rows = len(positions), self.shape.rows
        index = positions.clamp(max=self.shape.positions - 1)
        if rows < self.shape.positions:
            index %= rows
        if images > 1:
            index += arange(images, positions.device)[:, None] * rows
        return F.embedding(index, self.table.flatten(0, 1))

    def draft(self, keys: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
        """Return the noise (images, n, vocab) that samples the children of n nodes.

        Children of two nodes never share a number, which rules that judge a node by its
        descendants depend on: cousins have to be independent draws.

        Args:
            keys: (images, 1) of the round's streams.
            positions: (images, n) image positions of the children.
            parents: (n,) ranks of the nodes among those that are expanded into one level. A node's
                rank does not depend on the other images of the batch, as its index does.
        """
        if self.shape.greedy:
            return self.table.new_zeros(len(positions), len(parents), 1)
        counters = positions + (parents << _POSITION_BITS)
        return gumbel_of(keys[..., None], counters, self.shape.width).to(self.shape.dtype)
