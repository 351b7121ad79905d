"""The small steps of a round as compiled kernels, on a CPU: one call for a dozen of torch's.

Between two forward passes a round runs some hundred operations on a few numbers. torch takes longer
to start one than to do it. `models/kernels/rounds.h` does what the step that asks for it does by
torch; torch does it on GPUs, in rounds that are recorded, and where nothing can be compiled.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from decoding.transfer import is_recording
from models.native import NAMES, kernels_of

_ON: ContextVar[bool] = ContextVar("compiled", default=False)
_N, _AT = ctypes.c_int64, ctypes.c_void_p


@contextmanager
def compiled_steps(on: bool) -> Iterator[None]:
    """Let the steps of a round run compiled kernels where they can."""
    token = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(token)


def kernels_for(values: Tensor) -> "Rounds | None":
    """Return the kernels that compute with values, or None if torch must."""
    if not _ON.get() or type(values) is not Tensor or not values.is_cpu:
        return None
    if is_recording() or torch.compiler.is_compiling() or values.dtype not in NAMES:
        return None
    return _rounds(values.dtype)


@cache
def _rounds(dtype: torch.dtype) -> "Rounds":
    return Rounds(dtype)


class _Trees(ctypes.Structure):
    _fields_ = [("nodes", _N), *((name, _AT) for name in ("tokens", "parents", "depths", "scores"))]


# tokens, parents, depths and scores of trees, (images, 1 + nodes) each
Columns = Sequence[Tensor]


class Rounds:
    """The kernels for log-probabilities of a type. Shapes are those of the steps that call them."""

    def __init__(self, dtype: torch.dtype):
        self.dtype, self._kernels = dtype, kernels_of(dtype)

    def log_p(self, logits: Tensor, guidance: int, cfg: float, temperature: float) -> Tensor:
        """Return log p (images, n, vocab) of logits (images x guidance, n, vocab), without cuts."""
        rows, n, vocab = logits.shape
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        out = torch.empty(rows // guidance, n, vocab, dtype=dtype)
        self._kernels.log_p(
            len(out), n, vocab, guidance, cfg, temperature, _at(logits), out.data_ptr()
        )
        return out

    def children(
        self,
        log_q: Tensor,
        noise: Tensor | None,
        count: int,
        factor: float,
        trust: Tensor | None,
        normal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the best tokens (images, k, count) and their estimates.

        log_q: (images, k, vocab). noise: as `Proposal.children` takes it. normal: whether log q is
        the estimate as it is.
        """
        images, k, vocab = log_q.shape
        if log_q.stride(2) != 1:
            log_q = log_q.contiguous()
        if noise is not None and noise.shape[2] == 1:
            noise = None
        if noise is not None:
            noise = noise.expand(-1, k, -1)
        trust = None if trust is None else trust.expand(images, k).contiguous()
        count = min(count, vocab)
        scores = log_q.new_empty(images, k, count)
        tokens = torch.empty(images, k, count, dtype=torch.long)
        self._kernels.children(
            images, k, vocab, count, log_q.data_ptr(), *log_q.stride()[:2],
            *((None, 0, 0) if noise is None else (noise.data_ptr(), *noise.stride()[:2])),
            factor, None if trust is None else trust.data_ptr(), normal,
            tokens.data_ptr(), scores.data_ptr(),
        )  # fmt: skip
        return tokens, scores

    def visible(self, parents: Tensor) -> Tensor:
        """Return (images, 1 + nodes, 1 + nodes) bool: what nodes see, by their parents."""
        images, nodes = parents.shape
        seen = torch.empty(images, nodes, nodes, dtype=torch.bool)
        self._kernels.visible(images, nodes, _at(parents), seen.data_ptr())
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
        self._kernels.best(images, nodes, newest, k, _at(scores), chosen.data_ptr())
        return chosen

    def ended(self, scores: Tensor, newest: int, limits: Tensor) -> Tensor:
        """Return (images, 1) bool: where nodes as good as the `newest` ones' best fill the limits.

        scores: (images, 1 + nodes). limits: (images, 1) nodes.
        """
        found, limits = torch.empty(len(scores), 1, dtype=torch.bool), limits.contiguous()
        images, nodes = scores.shape
        self._kernels.ended(images, nodes, newest, _at(scores), limits.data_ptr(), found.data_ptr())
        return found

    def before(
        self, parents: Tensor, nodes: Tensor, known: Tensor, outputs: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return a level's outputs at the parents of nodes, and what these see, themselves last.

        Args:
            parents: (images, 1 + nodes) of trees.
            nodes: (images, k) of the next level.
            known: (images, level) nodes of this one.
            outputs: (images, guidance, level, hidden).
            seen: (images, level, slots).
        """
        read = [each.contiguous() for each in (parents, nodes, known, outputs, seen)]
        images, guidance, level, hidden = outputs.shape
        k, slots = nodes.shape[1], seen.shape[2]
        features = outputs.new_empty(images, guidance, k, hidden)
        sees = torch.empty(images, k, slots + k, dtype=torch.bool)
        self._kernels.before(
            images, guidance, hidden, slots, parents.shape[1], level, k,
            *(each.data_ptr() for each in (*read, features, sees)),
        )  # fmt: skip
        return features, sees

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
        images, window = tokens.shape
        grown = _empty_like(old, old[0].shape[1] * (1 + window))
        before, after, worth = _trees(old), _trees(grown), torch.empty_like(grown[3])
        self._kernels.graft(
            images, ctypes.addressof(before[0]), window, tokens.data_ptr(), hits.data_ptr(),
            reach.data_ptr(), renewal, halved, ctypes.addressof(after[0]), worth.data_ptr(),
        )  # fmt: skip
        return grown, worth

    def move(self, memory: Tensor, path: Tensor, first: Tensor) -> None:
        """Bring slots to the front: path (images, n), from the slots first (images,) on.

        memory: (2 layers, rows, kv_heads, slots, head_dim).
        """
        layers, rows, heads, _, size = memory.shape
        images, path = len(first), path.contiguous()
        self._kernels.move(
            images, rows // images, path.shape[1], path.data_ptr(), _at(first), layers, heads,
            size, *memory.stride()[:3], memory.data_ptr(),
        )  # fmt: skip

    def open(
        self, pads: Tensor, first: Tensor, origins: Tensor, last: int, tokens: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return positions (rows, n) and mask (rows, 1, n, slots) of a pass over new tokens.

        Args:
            pads: (rows, 1, 1, slots) mask of the slots before a row begins.
            first: (images,) slot of the first of the latest tokens.
            origins: (rows,) slot of position 0.
            last: the greatest position.
            tokens: their depths (images, n), and what they see of the m latest (images, n, m).
        """
        (depths, block), rows, stop = tokens, len(pads), pads.shape[3]
        images, n, m = block.shape
        positions, bare = torch.empty(rows, n, dtype=torch.long), n == m == 1
        mask = pads if bare and images == 1 else pads.new_empty(rows, 1, n, stop)
        self._kernels.open(
            images, rows // images, n, m, stop, _at(first), _at(origins), last, depths.data_ptr(),
            *depths.stride(), block.data_ptr(), *block.stride(), pads.data_ptr(), pads.stride(0),
            m == stop, positions.data_ptr(), None if mask is pads else mask.data_ptr(),
        )  # fmt: skip
        return positions, mask

    def ahead(self, table: Tensor, root: Tensor, reached: Tensor, reach: int, up: int) -> Tensor:
        """Return predictions (images, reach, vocab) of the next positions.

        Args:
            table: (images, rows + 2, vocab) of predictions by position.
            root: (images, 1) the last decided position.
            reached: (images, 1) the last position with a prediction.
            reach: how many positions.
            up: what stands for unknown ones, as `ahead` in rounds.h has it.
        """
        images, rows, vocab = table.shape
        out = table.new_empty(images, reach, vocab)
        self._kernels.ahead(
            images, reach, vocab, rows - 2, up, _at(root), _at(reached), _at(table), out.data_ptr()
        )
        return out

    def remember(
        self,
        table: Tensor,
        root: Tensor,
        reached: Tensor,
        tree: Columns,
        verdict: tuple[Tensor, Tensor],
        log_p: Tensor,
    ) -> None:
        """Take predictions log_p (images, 1 + nodes, vocab) over into a table; move root, reached.

        table, root, reached: as for `ahead`. tree: verified; verdict: its path and accepted length.
        """
        images, nodes, vocab = log_p.shape
        read = [each.contiguous() for each in (*tree[1:], *verdict, log_p)]
        assert tree[3].dtype == table.dtype == log_p.dtype
        self._kernels.remember(
            images, nodes, vocab, table.shape[1] - 2, *(each.data_ptr() for each in read),
            _at(table), _at(root), _at(reached),
        )  # fmt: skip


def _empty_like(columns: Columns, nodes: int) -> list[Tensor]:
    return [column.new_empty(len(column), nodes) for column in columns]


def _trees(columns: Columns) -> tuple[_Trees, list[Tensor]]:
    """Return trees as the kernels read them, and what must stay in memory meanwhile."""
    columns = [column.contiguous() for column in columns]
    return _Trees(columns[0].shape[1], *(column.data_ptr() for column in columns)), columns


def _at(values: Tensor) -> int:
    assert values.is_contiguous()
    return values.data_ptr()
