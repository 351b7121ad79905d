"""The small steps of a round as compiled kernels, on a CPU: one call for a dozen of torch's.

Between two forward passes a round runs some hundred operations on a few numbers. torch takes longer
to start one than to do it. `rounds.h`, `trees.h`, `slots.h` and `recall.h` in `models/kernels/` do
what the step that asks for them does by torch; torch does it on GPUs, in rounds that are recorded,
and where nothing can be compiled.
"""

from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from decoding.recall_kernels import RecallKernels
from decoding.transfer import is_recording
from decoding.tree_kernels import Columns, TreeKernels, at
from models.native import NAMES, kernels_of

_ON: ContextVar[bool] = ContextVar("compiled", default=False)


class compiled_steps:  # noqa: N801 - reads as a function; a generator would take longer
    """Let the steps of a round run compiled kernels where they can, in a `with` block."""

    def __init__(self, on: bool):
        self.on = on

    def __enter__(self) -> None:
        self.token = _ON.set(self.on)

    def __exit__(self, *raised: object) -> None:
        _ON.reset(self.token)


def steps_for(values: Tensor) -> "Rounds | None":
    """Return the kernels that compute with values, or None if torch must."""
    if not _ON.get() or type(values) is not Tensor or not values.is_cpu:
        return None
    if is_recording() or torch.compiler.is_compiling() or values.dtype not in NAMES:
        return None
    return _rounds(values.dtype)


@cache
def _rounds(dtype: torch.dtype) -> "Rounds":
    return Rounds(dtype)


class Rounds(TreeKernels, RecallKernels):
    """The kernels for log-probabilities of a type. Shapes are those of the steps that call them."""

    def __init__(self, dtype: torch.dtype):
        self.dtype, self._kernels = dtype, kernels_of(dtype)

    def log_p(self, logits: Tensor, guidance: int, cfg: float, temperature: float) -> Tensor:
        """Return log p (images, n, vocab) of logits (images x guidance, n, vocab), without cuts."""
        rows, n, vocab = logits.shape
        dtype = torch.promote_types(self.dtype, torch.float32)
        out, logits = torch.empty(rows // guidance, n, vocab, dtype=dtype), logits.contiguous()
        self._kernels.log_p(
            len(out), n, vocab, guidance, cfg, temperature, logits.data_ptr(), out.data_ptr()
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
            assert noise.dtype == log_q.dtype
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

    def move(self, memory: Tensor, path: Tensor, first: Tensor) -> None:
        """Bring slots to the front: path (images, n), from the slots first (images,) on.

        memory: (2 layers, rows, kv_heads, slots, head_dim).
        """
        layers, rows, heads, _, size = memory.shape
        images, path = len(first), path.contiguous()
        self._kernels.move(
            images, rows // images, path.shape[1], path.data_ptr(), at(first), layers, heads,
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
            images, rows // images, n, m, stop, at(first), at(origins), last, depths.data_ptr(),
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
            up: what stands for unknown ones, as `ahead` in slots.h has it.
        """
        images, rows, vocab = table.shape
        out = table.new_empty(images, reach, vocab)
        self._kernels.ahead(
            images, reach, vocab, rows - 2, up, at(root), at(reached), at(table), out.data_ptr()
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
            at(table), at(root), at(reached),
        )  # fmt: skip
