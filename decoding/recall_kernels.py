"""What the kernels of `models/kernels/recall.h` do with stale predictions."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.tree_kernels import Columns, at
from models.native import Kernels

_N, _F, _AT = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_SIZES = ("images", "k", "vocab", "hidden", "reach", "nodes", "known", "level", "levels")
_FACTORS = ("share", "least", "slope", "trust_least", "trust_slope", "floor")
_READ = ("sharpness", "tokens", "parents", "chosen", "recent", "root", "reached")
_LAST = ("places", "lineage")
_VALUES = ("directions", "log_p", "ahead", "log_q", "shares", "trust")


class Recall(ctypes.Structure):
    _fields_ = [
        *((name, _N) for name in _SIZES),
        *((name, _F) for name in _FACTORS),
        *((name, _AT) for name in (*_READ, *_LAST, *_VALUES)),
    ]


@dataclass(frozen=True)
class LastTree:
    """What is known of the tree that was verified last, `known` nodes.

    places: (images, known) the positions of its nodes, -1 for none. lineage: (images, known,
    tokens) their last tokens, their own first. log_p: (images, known, vocab) the target's
    predictions after them.
    """

    places: Tensor
    lineage: Tensor
    log_p: Tensor


@dataclass(frozen=True)
class Likeness:
    """How predictions are weighed by similarity; see `drafters.similar`.

    directions: (codes, hidden). sharpness: (tokens,) fp64. share: of predictions by position in a
    mixture. slope: of a share with the similarity, after its value at 0. floor: the least
    log-probability.
    """

    directions: Tensor
    sharpness: Tensor
    share: float
    slope: tuple[float, float]
    floor: float


class RecallKernels:
    """Steps on stale predictions. Shapes are those of the steps that call them."""

    _kernels: Kernels

    def lineage(
        self, tree: Columns, verdict: tuple[Tensor, Tensor, Tensor], root: Tensor, recent: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the positions and the last tokens of a verified tree's nodes, as `LastTree` has.

        verdict: its path, emitted codes and accepted length. root: (images, 1) position. recent:
        (images, tokens) the last decided tokens; becomes what they are after the verdict.
        """
        read = [each.contiguous() for each in (*tree, *verdict)]
        (images, nodes), reach = tree[0].shape, recent.shape[1]
        places = torch.empty(images, nodes, dtype=torch.long)
        found = torch.empty(images, nodes, reach, dtype=torch.long)
        self._kernels.lineage(
            images, nodes, reach, *(each.data_ptr() for each in read), at(root), at(recent),
            places.data_ptr(), found.data_ptr(),
        )  # fmt: skip
        return places, found

    def recall(
        self,
        likeness: Likeness,
        last: LastTree,
        decided: tuple[Tensor, Tensor, Tensor],
        ahead: Tensor,
        growing: tuple[Tensor, Tensor, Tensor, int],
        trust: tuple[float, float],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return predictions (images, k, vocab), their shares in a mixture and trust (images, k).

        Args:
            likeness: how they are weighed.
            last: what they come from.
            decided: the last tokens (images, tokens), the position of the last one and the last one
                with a prediction, (images, 1).
            ahead: (images, levels, vocab) predictions by position alone.
            growing: a tree's tokens and parents, the nodes (images, k) of its deepest level that
                are continued, and its height.
            trust: as of `trust_in`.
        """
        tokens, parents, chosen = (each.contiguous() for each in growing[:3])
        log_p, directions = last.log_p.contiguous(), likeness.directions
        assert log_p.dtype == ahead.dtype == directions.dtype and growing[3] < ahead.shape[1]
        (images, k), vocab = chosen.shape, log_p.shape[2]
        found = log_p.new_empty(images, k, vocab), *(log_p.new_empty(images, k) for _ in range(2))
        read = likeness.sharpness, tokens, parents, chosen, *decided, last.places, last.lineage
        recalled = Recall(
            images, k, vocab, directions.shape[1], len(likeness.sharpness), tokens.shape[1],
            log_p.shape[1], growing[3], ahead.shape[1],
            likeness.share, *likeness.slope, *trust, likeness.floor,
            *(at(each) for each in (*read, directions, log_p, ahead, *found)),
        )  # fmt: skip
        self._kernels.recall(ctypes.addressof(recalled))
        return found

    def mix(self, own: Tensor, other: Tensor, shares: Tensor, cut: bool) -> Tensor:
        """Return log q (images, k, vocab) of a mixture; shares: (images, k) or (images, 1)."""
        images, k, vocab = own.shape
        assert own.dtype == other.dtype == shares.dtype and own.stride(2) == other.stride(2) == 1
        shares, mixed = shares.expand(images, k), own.new_empty(images, k, vocab)
        self._kernels.mix(
            images, k, vocab, own.data_ptr(), *own.stride()[:2], other.data_ptr(),
            *other.stride()[:2], shares.data_ptr(), *shares.stride(), cut, mixed.data_ptr(),
        )  # fmt: skip
        return mixed
