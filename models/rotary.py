"""Rotary positions: half-split by sequence position, or by image row and column."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import GridRope, ImageGrid, ImageRope, TransformerSpec


class Rotary(nn.Module):
    """Half-split rotary embedding (RoFormer, arXiv 2104.09864).

    The table of cosines and signed sines stays in fp32: it is neither a parameter nor a buffer, so
    `.to(bf16)` does not round it.
    """

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.head_dim, self.max_positions = spec.head_dim, spec.max_positions
        self.theta = spec.rope_theta
        self.table: Tensor | None = None  # (positions, 2 head_dim)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(rows, n) -> cosines and signed sines (rows, n, 1, head_dim)."""
        if self.table is None or self.table.device != positions.device:
            self.table = self._build(positions.device)
        cos, sin = self.table[positions].to(dtype).unsqueeze(2).chunk(2, -1)
        return cos, sin

    def table_in(self, dtype: torch.dtype) -> Tensor:
        """Make the table (positions, 2 head_dim), rounded to a type, on a CPU; bf16 in fp32."""
        table = self._build(torch.device("cpu")).to(dtype)
        # Rounded as in torch's passes, in the type that the kernels compute in.
        return table.float() if dtype == torch.bfloat16 else table

    def _build(self, device: torch.device) -> Tensor:
        angle = self._angles()
        cos, sin = angle.cos(), angle.sin()
        # The sign is in the table, so that `rotate` need not negate half of its input.
        return torch.cat([cos, cos, -sin, sin], -1).to(device)

    def _angles(self) -> Tensor:
        """Return the angles (positions, head_dim / 2)."""
        positions = torch.arange(self.max_positions, dtype=torch.float32)
        return torch.outer(positions, self._frequencies(self.head_dim))

    def _frequencies(self, width: int) -> Tensor:
        """Return how far a position turns each pair of so many channels."""
        return self.theta ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)


class RotaryGrid(Rotary):
    """Rotate neighbouring channels, the first half by image row, the second by column (LlamaGen).

    Cosines and sines are zero before and after the image, so queries and keys there become zero
    vectors.
    """

    def __init__(self, spec: TransformerSpec, image: ImageRope):
        super().__init__(spec)
        self.image = image

    def _build(self, device: torch.device) -> Tensor:
        half, side = self.head_dim // 2, self.image.side
        # angles of one axis: (side, head_dim / 4)
        angle = torch.outer(torch.arange(side, dtype=torch.float32), self._frequencies(half))
        rows, columns = angle[:, None].expand(-1, side, -1), angle[None].expand(side, -1, -1)
        pairs = torch.cat([rows, columns], -1).flatten(0, 1)  # (side^2, head_dim / 2)
        cos = pairs.cos().repeat_interleave(2, -1)  # (side^2, head_dim)
        sin = torch.stack([-pairs.sin(), pairs.sin()], -1).flatten(1)
        table = torch.zeros(self.max_positions, 2 * self.head_dim, dtype=torch.float32)
        table.narrow(0, self.image.condition, side * side).copy_(torch.cat([cos, sin], -1))
        return table.to(device)


class RotaryGrids(Rotary):
    """Rotate by time, row and column of two grids, one after the other (GLM-Image).

    All three count on in a text. In a grid time stands still at the first number after what comes
    before, where rows and columns begin; after it all go on behind its longer side. Attention sees
    differences only, so numbers are counted from the first image token on, those of the prompt
    below 0, and one table serves prompts of all lengths.

    Rotated pairs of channels come first in both halves of a head, as `order` brings them.
    """

    grid: ImageGrid  # known once there are prompts; it ends the table

    def __init__(self, spec: TransformerSpec, rope: GridRope):
        super().__init__(spec)
        self.rope = rope

    @property
    def order(self) -> Tensor:
        """Return where each channel of a head (head_dim,) is in the public layout.

        There the rotated channels stand before the others, and pairs in halves of the former.
        """
        half, kept = self.rope.width // 2, (self.head_dim - self.rope.width) // 2
        turned, rest = torch.arange(2 * half), self.rope.width + torch.arange(2 * kept)
        return torch.cat([turned[:half], rest[:kept], turned[half:], rest[kept:]])

    def _angles(self) -> Tensor:
        grid, width = self.grid, self.rope.width
        # (room, 3): in a text time, row and column are the same number
        text = torch.arange(grid.tokens - self.max_positions, 0)[:, None].expand(-1, 3)
        numbers, begin = [text], 0
        for rows, columns in grid.sizes:
            cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2)
            numbers.append(begin + F.pad(cells, (1, 0)))  # time, row, column
            begin += max(rows, columns)
        axes = [axis % 3 for axis, pairs in enumerate(self.rope.sections) for _ in range(pairs)]
        angle = torch.cat(numbers)[:, axes] * self._frequencies(width)  # (positions, width / 2)
        # The angle 0 keeps the channels that do not turn.
        return F.pad(angle, (0, (self.head_dim - width) // 2))


class Unrotated(Rotary):
    """Turn nothing: the angle is 0 everywhere, in models with learned positions."""

    def _frequencies(self, width: int) -> Tensor:
        return torch.zeros(width // 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (rows, n, heads, head_dim) by cos and signed sin, (rows, n, 1, head_dim)."""
    left, right = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat([right, left], -1), sin)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channels 2 i and 2 i + 1 together, where `rotate` takes i and i + head_dim / 2."""
    return torch.addcmul(x * cos, x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), sin)
