"""What the kernels of `models/kernels/trees.h` do with trees."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from models.native import Kernels

_N, _AT = ctypes.c_int64, ctypes.c_void_p


class _Trees(ctypes.Structure):
    _fields_ = [("nodes", _N), *((name, _AT) for name in ("tokens", "parents", "depths", "scores"))]


# tokens, parents, depths and scores of trees, (images, 1 + nodes) each
Columns = Sequence[Tensor]


class TreeKernels:
    """Steps on trees. Shapes are those of the steps that call them."""

    _kernels: Kernels

    def visible(self, parents: Tensor) -> Tensor:
        """Return (images, 1 + nodes, 1 + nodes) bool: what nodes see, by their parents."""
        images, nodes = parents.shape
        seen = torch.empty(images, nodes, nodes, dtype=torch.bool)
        self._kernels.visible(images, nodes, at(parents), seen.data_ptr())
        return seen

    def extend(
        self,
        old: Columns,
        height: int,
        children: tuple[Tensor, Tensor, Tensor],
        limits: tuple[Tensor, Tensor, int] | None,
    ) -> list[Tensor]:
        """Return the columns of trees with a new level.

        Args:
            old: the trees.
            height: their deepest level's.
            children: nodes (images, k) of the last level, their tokens and estimates (images, k,
                c).
            limits: depth and width (images, 1) of every image, and the greatest width; None
                without limits.
        """
        nodes, tokens, hits = (each.contiguous() for each in children)
        assert hits.dtype == old[3].dtype
        images, k, c = tokens.shape
        grown = _empty_like(old, old[0].shape[1] + k * c)
        depth, width, most = (None, None, 0) if limits is None else limits
        bounds = [None if each is None else each.contiguous() for each in (depth, width)]
        before, after = _trees(old), _trees(grown)
        self._kernels.extend(
            images, ctypes.addressof(before[0]), height, k, c, nodes.data_ptr(), tokens.data_ptr(),
            hits.data_ptr(), most, *(None if each is None else each.data_ptr() for each in bounds),
            ctypes.addressof(after[0]),
        )  # fmt: skip
        return grown

    def best(self, scores: Tensor, newest: int, k: int) -> Tensor:
        """Return the best k of the `newest` last nodes of trees, by scores (images, 1 + nodes)."""
        chosen = torch.empty(len(scores), k, dtype=torch.long)
        images, nodes = scores.shape
        self._kernels.best(images, nodes, newest, k, at(scores), chosen.data_ptr())
        return chosen

    def ended(self, scores: Tensor, newest: int, limits: Tensor) -> Tensor:
        """Return (images, 1) bool: where nodes as good as the `newest` ones' best fill the limits.

        scores: (images, 1 + nodes). limits: (images, 1) nodes.
        """
        found, limits = torch.empty(len(scores), 1, dtype=torch.bool), limits.contiguous()
        images, nodes = scores.shape
        self._kernels.ended(images, nodes, newest, at(scores), limits.data_ptr(), found.data_ptr())
        return found

    def prune(self, old: Columns, worth: Tensor, count: int, limits: Tensor | None) -> list[Tensor]:
        """Return the columns of trees of the best nodes, `count` each.

        worth: (images, 1 + nodes). limits: (images, 1) present ones of these; None for all.
        """
        kept = _empty_like(old, 1 + count)
        before, after, worth = _trees(old), _trees(kept), worth.contiguous()
        limits = None if limits is None else limits.contiguous()
        self._kernels.prune(
            len(worth), ctypes.addressof(before[0]), worth.data_ptr(),
            None if limits is None else limits.data_ptr(), ctypes.addressof(after[0]),
        )  # fmt: skip
        return kept

    def graft(
        self, old: Columns, foreseen: tuple[Tensor, Tensor, Tensor], renewal: float, halved: float
    ) -> tuple[list[Tensor], Tensor]:
        """Return the columns of trees that foreseen tokens continue, and their nodes' worth.

        foreseen: tokens and hits (images, window), and the greatest depth (images, 1). renewal,
        halved: what a renewed prediction is worth next to the root, and where half as much.
        """
        tokens, hits, reach = (each.contiguous() for each in foreseen)
        assert hits.dtype == old[3].dtype
        images, window = tokens.shape
        grown = _empty_like(old, old[0].shape[1] * (1 + window))
        before, after, worth = _trees(old), _trees(grown), torch.empty_like(grown[3])
        self._kernels.graft(
            images, ctypes.addressof(before[0]), window, tokens.data_ptr(), hits.data_ptr(),
            reach.data_ptr(), renewal, halved, ctypes.addressof(after[0]), worth.data_ptr(),
        )  # fmt: skip
        return grown, worth


def _empty_like(columns: Columns, nodes: int) -> list[Tensor]:
    return [column.new_empty(len(column), nodes) for column in columns]


def _trees(columns: Columns) -> tuple[_Trees, list[Tensor]]:
    """Return trees as the kernels read them, and what must stay in memory meanwhile."""
    columns = [column.contiguous() for column in columns]
    return _Trees(columns[0].shape[1], *(column.data_ptr() for column in columns)), columns


def at(values: Tensor) -> int:
    assert values.is_contiguous()
    return values.data_ptr()
