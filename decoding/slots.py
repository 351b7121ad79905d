"""Row ends: tokens that some models force after every row of the image, so nothing decides them.

Trees, policies, verifiers and noise know image tokens only. The networks read a sequence of slots:
the nodes of a tree and, after every node that ends a row, a slot for the row end. The row end's
features then score the node's children. So trees grow on across row ends in one forward pass, and a
forced token costs neither a round nor a score.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.start import Start
from decoding.transfer import may_ask, on_device
from decoding.tree import DraftTree
from models.base import ImageGrid


@dataclass(frozen=True)
class Slots:
    """The sequence of one forward pass over a tree: its nodes, then the row ends after some.

    codes: (images, m). depths: (images, m) distance from the root in slots. visible: (images, m, m)
    bool, what a slot sees. exits: (images, 1 + nodes) the slot whose features score a node's
    children; None if it is the node's own everywhere.
    """

    codes: Tensor
    depths: Tensor
    visible: Tensor
    exits: Tensor | None = None


@dataclass(frozen=True)
class Path:
    """The slots of the accepted paths and the codes that follow them, both (images, n).

    counts: how many of the n are valid, per image; a list, or (images, 1) on the device.
    """

    slots: Tensor
    codes: Tensor
    counts: list[int] | Tensor


def lay_out(tree: DraftTree, start: Start, grid: ImageGrid) -> Slots:
    """Return the slots of trees; start: of the round."""
    reach = tree.height + 1
    if grid.row_end is None or not (
        start.sizes.fixed or any(ends_row(root, reach, grid) for root in start.roots)
    ):
        return Slots(tree.tokens, tree.depths, tree.visible)
    root = start.decided - 1
    position = root + tree.depths
    ends = (position + 1) % grid.columns == 0  # (images, 1 + nodes)
    # A GPU would have to be waited for; there every node gets room for a row end, which costs less.
    count = int(ends.sum(1).max()) if may_ask(ends) else tree.nodes + 1
    present, node = ends.int().sort(dim=1, descending=True, stable=True)
    present, node = present[:, :count].bool(), node[:, :count]  # (images, e): nodes that end rows
    nodes = tree.nodes + 1
    own = torch.arange(nodes, device=node.device).expand(len(root), -1)
    depths = grid.slots(position) - grid.slots(root)
    codes = torch.cat([tree.tokens, torch.full_like(node, grid.row_end)], 1)
    exits = own.scatter(
        1, node, torch.where(present, nodes + torch.arange(count, device=node.device), node)
    )
    depths = torch.cat([depths, depths.gather(1, node) + 1], 1)
    return Slots(codes, depths, _visible(tree.visible, node, present), exits)


def _visible(visible: Tensor, node: Tensor, present: Tensor) -> Tensor:
    """Return (images, m, m) what slots see, from what nodes see.

    Nodes also see the row ends after their ancestors. A row end sees what its node sees, and
    itself.

    visible: (images, 1 + nodes, 1 + nodes) of the tree. node, present: (images, e) the nodes that
    end rows.
    """
    every = torch.arange(visible.shape[1], device=node.device)[:, None]
    after = visible.gather(2, node[:, None].expand(-1, visible.shape[1], -1))
    after = after & (every != node[:, None]) & present[:, None]  # (images, 1 + nodes, e)
    rows = torch.cat([visible, after], 2)
    ends = rows.gather(1, node[..., None].expand(-1, -1, rows.shape[2]))
    ends[:, :, visible.shape[1] :] |= torch.eye(node.shape[1], dtype=torch.bool, device=node.device)
    return torch.cat([rows, ends], 1)


def slots_of(root: int, count: int, grid: ImageGrid) -> int:
    """Return the slots of `count` image tokens from a root's position on, with their row ends."""
    return grid.slots(root + count) - grid.slots(root)


def ends_row(position: int, count: int, grid: ImageGrid) -> bool:
    """Return whether a row ends after one of `count` image tokens from a position on."""
    return grid.row_end is not None and position % grid.columns + count >= grid.columns


def with_row_ends(codes: Tensor, grid: ImageGrid) -> Tensor:
    """Return an image's first codes (n,), with row ends after full rows if the grid has them."""
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
    counts: list[int] | Tensor,
    start: Start,
    grid: ImageGrid,
) -> Path:
    """Return the slots to keep: those of the accepted nodes, and of the row ends between them.

    Args:
        slots: of the verified trees.
        path: (images, n) tree indices of the root and the accepted nodes.
        emitted: (images, n) the decided codes.
        counts: decided tokens per image, at most n; a list, or (images, 1) on the device.
        start: of the round.
        grid: of the image tokens.
    """
    if slots.exits is None:
        return Path(path, emitted, counts)
    known = not isinstance(counts, Tensor)
    decided = on_device(counts, path.device)[:, None] if known else counts
    exits = slots.exits.gather(1, path)
    taken = torch.arange(path.shape[1], device=path.device) < decided  # (images, n)
    ends = exits != path
    pairs = torch.stack([taken, taken & ends], 2).flatten(1)  # a node, then its row end
    totals = pairs.sum(1, keepdim=True)
    if known:
        totals = [slots_of(r, n, grid) for r, n in zip(start.roots, counts, strict=True)]
    most = max(totals) if known else pairs.shape[1]
    order = pairs.int().sort(dim=1, descending=True, stable=True).indices[:, :most]
    codes = torch.stack([torch.where(ends, grid.row_end, emitted), emitted], 2).flatten(1)
    return Path(
        torch.stack([path, exits], 2).flatten(1).gather(1, order), codes.gather(1, order), totals
    )
