"""Positional noise: Gumbel numbers that are a pure function of (image seed, role, position, token).

The target samples by adding Gumbel numbers to log p and taking the argmax (Gumbel-max trick). Since
the numbers belong to positions and not to calls, the token after a prefix is a function of the
prefix: the same whatever was drafted, in every batch, on CPU and CUDA (drafter-invariant
speculative decoding, arXiv 2408.07978). That makes every tree exact.

Roles are independent streams. `target` chooses the target's tokens; `accept` and `residual` serve
randomised acceptance (a position is decided once, so no entry is used twice); `draft` draws the
children of a sampling proposal, separately for every parent node.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from decoding.seeds import hashed
from support.constants import arange

ACCEPTING = ("accept", "residual")  # the roles of randomised acceptance
_GAMMA = (
    0x9E3779B97F4A7C15 - 2**64
)  # SplitMix64's increment and multipliers (Steele et al., OOPSLA 2014), as int64
_MIX = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 right without its sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def stream_key(seed: int, role: str) -> int:
    """Return the 63-bit key of the stream `role` of an image."""
    return hashed("stream", seed, role)


def random_bits(key: int | Tensor, positions: Tensor, width: int) -> Tensor:
    """Return random int64 (..., width) of a stream at positions (...).

    Counter-based (SplitMix64): a number depends on key, position and column alone.

    key: of the stream, or of each position's, in the shape (..., 1).
    """
    # products of int64 wrap around as SplitMix64's unsigned words do
    x = positions[..., None] * (1 << 32) + arange(width, positions.device)
    x = x * _GAMMA + key
    for bits, factor in _MIX:
        x = (x ^ _shift_right(x, bits)) * factor
    return x ^ _shift_right(x, 31)


def uniform(key: int | Tensor, positions: Tensor, width: int) -> Tensor:
    """Return uniform numbers of the open interval (0, 1) in fp64, (..., width)."""
    # 52 bits and a half are exact in fp64; with 53 bits the greatest number would round to 1
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


# In fp32, 64 MiB hold all positions of Anole and Janus-Pro, and 512 of Emu3's 8,100.
_TABLE_BYTES = 2**26  # of one image; larger tables hold the next positions only
_AHEAD = 64  # least positions that are made at a time


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
class HostNoise:
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

    def residual(self, depth: int) -> float:
        """Return the uniform number of (0, 1) that draws the token after a node of this depth."""
        return uniform_at(stream_key(self.seed, "residual"), self.decided + depth, 0)

    def accept(self, depth: int, column: int) -> float:
        """Return a uniform number of (0, 1) that decides whether a draft is accepted.

        depth: of the node whose children are judged.
        """
        return uniform_at(self._accept_key, self.decided + depth, column)

    def target(self, depth: int) -> np.ndarray:
        """Return the noise (vocab,) that chooses the target's token after a node of this depth."""
        if self.greedy:
            return np.zeros(1)
        position = torch.tensor([self.decided + depth])
        noise = gumbel(self.seed, "target", position, self.shape.width)[0]
        return noise.to(self.shape.dtype).numpy()
