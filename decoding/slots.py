"""Tokens that a model forces on an image, the ends of rows: they stand in the sequence, yet nothing decides them.

Trees, policies, verifiers and noise know image tokens only. A slot is a place in the sequence that the networks read.
Where a node ends a row, the row's end takes a slot of its own behind it, in the same forward pass; its features then
score the node's children. So trees run on across row ends, and a forced token costs no round and no score.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.transfer import on_device
from decoding.tree import DraftTree
from models.base import ImageGrid


@dataclass(frozen=True)
class Slots:
    """The sequence of one forward pass over a tree: its nodes, then the row ends behind some of them.

    codes, depths: (images, m), a depth being the distance in slots from the root. visible: (images, m, m) as in a tree.
    exits: (images, 1 + nodes) the slot whose features score a node's children, None if it is always the node's own.
    """

    codes: Tensor
    depths: Tensor
    visible: Tensor
    exits: Tensor | None = None


@dataclass(frozen=True)
class Path:
    """The slots of the accepted paths and the codes that follow them, both (images, n); counts[i] of them count."""

    slots: Tensor
    codes: Tensor
    counts: list[int]


def lay_out(tree: DraftTree, roots: list[int], grid: ImageGrid) -> Slots:
    """The slots of trees whose roots are the image tokens at positions `roots`, one per image."""
    if not any(ends_row(root, tree.height + 1, grid) for root in roots):
        return Slots(tree.tokens, tree.depths, tree.visible)
    root = on_device(roots, tree.tokens.device)[:, None]
    position = root + tree.depths
    ends = (position + 1) % grid.columns == 0  # (images, 1 + nodes)
    count = int(ends.sum(1).max())  # waits for the device, in rounds over a row's end
    present, node = ends.int().sort(dim=1, descending=True, stable=True)
    present, node = (
        present[:, :count].bool(),
        node[:, :count],
    )  # (images, e): e row ends and the nodes they follow
    nodes = tree.nodes + 1
    own = torch.arange(nodes, device=node.device).expand(len(roots), -1)
    depths = grid.slots(position) - grid.slots(root)
    codes = torch.cat([tree.tokens, torch.full_like(node, grid.row_end)], 1)
    exits = own.scatter(
        1, node, torch.where(present, nodes + torch.arange(count, device=node.device), node)
    )
    depths = torch.cat([depths, depths.gather(1, node) + 1], 1)
    return Slots(codes, depths, _visible(tree.visible, node, present), exits)


def _visible(visible: Tensor, node: Tensor, present: Tensor) -> Tensor:
    """Nodes see the row ends behind their ancestors; a row end sees what its node (images, e) sees, and itself."""
    every = torch.arange(visible.shape[1], device=node.device)[:, None]
    behind = visible.gather(
        2, node[:, None].expand(-1, visible.shape[1], -1)
    )  # (images, 1 + nodes, e)
    behind = behind & (every != node[:, None]) & present[:, None]
    rows = torch.cat([visible, behind], 2)
    ends = rows.gather(1, node[..., None].expand(-1, -1, rows.shape[2]))
    ends[:, :, visible.shape[1] :] |= torch.eye(node.shape[1], dtype=torch.bool, device=node.device)
    return torch.cat([rows, ends], 1)


def ends_row(position: int, count: int, grid: ImageGrid) -> bool:
    """Whether a row ends behind one of `count` image tokens from a position on."""
    return grid.row_end is not None and position % grid.columns + count >= grid.columns


def with_row_ends(codes: Tensor, grid: ImageGrid) -> Tensor:
    """An image's first codes (n,), every full row of them closed by its row end where the grid has row ends."""
    if grid.row_end is None:
        return codes
    rows = codes.split(grid.columns)
    return torch.cat(
        [F.pad(row, (0, int(len(row) == grid.columns)), value=grid.row_end) for row in rows]
    )


def accepted(
    slots: Slots,
    path: Tensor,
    emitted: Tensor,
    counts: list[int],
    roots: list[int],
    grid: ImageGrid,
) -> Path:
    """The slots of accepted nodes path (images, n), from the root at position roots[i] on, and what follows them: row
    ends, and the codes emitted (images, n)."""
    if slots.exits is None:
        return Path(path, emitted, counts)
    exits = slots.exits.gather(1, path)
    place = torch.arange(path.shape[1], device=path.device)
    taken = place < on_device(counts, path.device)[:, None]  # (images, n)
    ends = exits != path
    pairs = torch.stack([taken, taken & ends], 2).flatten(1)  # a node, then its row end
    totals = [
        grid.slots(root + count) - grid.slots(root)
        for root, count in zip(roots, counts, strict=True)
    ]
    order = pairs.int().sort(dim=1, descending=True, stable=True).indices[:, : max(totals)]
    codes = torch.stack([torch.where(ends, grid.row_end, emitted), emitted], 2).flatten(1)
    return Path(
        torch.stack([path, exits], 2).flatten(1).gather(1, order), codes.gather(1, order), totals
    )
