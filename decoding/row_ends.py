"""Row ends: tokens that some models force after every image row, so nothing has to decide them.

Trees, policies, verifiers and noise know image tokens only. The target reads a sequence of slots:
the nodes of a tree and, in rounds that may reach the end of a row, a slot for the row end after
each node that ends one. The row end's hidden state then predicts the node's children. So trees grow
across row ends in one forward pass, and a forced token costs neither a round nor a score.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from decoding.round import AcceptedTokens, ImageInputs, Round, TreeShape, VerifyTokens
from models.base import ImageGrid
from support.constants import arange, identity


def insert_row_ends(tokens: VerifyTokens, round: Round, grid: ImageGrid) -> VerifyTokens:
    """Return the tokens of a tree's verification, followed by the row ends after its nodes."""
    assert grid.row_end is not None, "rounds without row ends insert none"
    root, nodes = round.inputs.decided - 1, tokens.codes.shape[1]
    position = root + tokens.depths
    ends = (position + 1) % grid.columns == 0  # (images, nodes)
    # Sorted and cut, because the size of `nonzero` would depend on values on the device.
    # Nodes that end a row first, in order; as many as any image of the batch may have.
    count = min(round.shape.row_ends, nodes)
    present, node = ends.int().sort(dim=1, descending=True, stable=True)
    present, node = present[:, :count].bool(), node[:, :count]  # (images, e)
    depths = grid.slots(position) - grid.slots(root)
    codes = torch.cat([tokens.codes, torch.full_like(node, grid.row_end)], 1)
    # other nodes keep their own slot, so the scatter below changes nothing for them
    slots = torch.where(present, nodes + arange(count, node.device), node)
    exits = arange(nodes, node.device).expand(len(root), -1).scatter(1, node, slots)
    depths = torch.cat([depths, depths.gather(1, node) + 1], 1)
    return VerifyTokens(codes, depths, _visible(tokens.visible, node, present), exits)


def _visible(visible: Tensor, node: Tensor, present: Tensor) -> Tensor:
    """Return (images, m, m) what slots see.

    Nodes also see the row ends after their ancestors. A row end sees what its node sees, and
    itself.

    visible: (images, 1 + nodes, 1 + nodes) of the tree. node, present: (images, e) the nodes that
    end rows.
    """
    count, ends = visible.shape[1], node.shape[1]
    every = arange(count, node.device)[:, None]
    after = visible.gather(2, node[:, None].expand(-1, count, -1))
    after = after & (every != node[:, None]) & present[:, None]  # (images, 1 + nodes, e)
    rows = torch.cat([visible, after], 2)
    at_ends = rows.gather(1, node[..., None].expand(-1, -1, rows.shape[2]))
    itself = identity(ends, node.device)
    at_ends = torch.cat([at_ends[..., :count], at_ends[..., count:] | itself], 2)
    return torch.cat([rows, at_ends], 1)


def keep_row_ends(kept: AcceptedTokens, exits: Tensor, grid: ImageGrid) -> AcceptedTokens:
    """Return the slots to keep: those of the accepted nodes, and of the row ends between them.

    exits: (images, 1 + nodes) as of `VerifyTokens`.
    """
    assert grid.row_end is not None, "rounds without row ends keep none"
    path, exits = kept.slots, exits.gather(1, kept.slots)
    taken = arange(path.shape[1], path.device) < kept.counts  # (images, n)
    ends = exits != path
    pairs = torch.stack([taken, taken & ends], 2).flatten(1)  # a node, then its row end
    order = pairs.int().sort(dim=1, descending=True, stable=True).indices
    slots = torch.stack([path, exits], 2).flatten(1)
    codes = torch.where(ends, grid.row_end, kept.codes)
    codes = torch.stack([codes, kept.codes], 2).flatten(1)
    return AcceptedTokens(slots.gather(1, order), codes.gather(1, order), pairs.sum(1, True))


def end_depths(images: Sequence[ImageInputs], grid: ImageGrid) -> tuple[int, ...]:
    """Return the depths after which an image row ends in any of the trees, 0 for the root."""
    depths: set[int] = set()
    for image in images:
        # depth d is position decided - 1 + d, which ends a row if decided + d is a multiple
        depths |= set(range(-image.decided % grid.columns, image.tree.reach + 1, grid.columns))
    return tuple(sorted(depths))


def most_row_ends(depths: Collection[int], tree: TreeShape) -> int:
    """Return how many nodes a tree may have at these depths."""
    per_depth = max(tree.width, 1) ** 2  # a level has `width` children of each of `width` nodes
    below = len(set(depths) - {0})
    return int(0 in depths) + min(tree.nodes, below * per_depth)
