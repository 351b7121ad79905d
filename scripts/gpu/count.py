"""Count the kernels that a round launches, the bytes that they move and their operations.

The engine runs on the CPU with torch's own operations, which are a GPU's kernels nearly one by one.
So that it needs neither a GPU nor weights, the model is narrow, with all its layers, its vocabulary
and its image; what is counted of its tensors is scaled up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import unwrap
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from configs.methods import MethodSettings
from decoding.graphs import Launch
from decoding.images import Job
from decoding.round import RoundShape
from decoding.sampling import best, log_p_of
from models.base import TransformerSpec
from models.transformer import BY_TORCH, Block, BlockOps
from runs.session import Session
from support.compiler import compiling
from support.kernels import Kernels

KINDS = ("weights", "drafter", "head", "cache", "small")
# Operations that are more than one kernel on a GPU, or none.
SEVERAL = {"sort": 4, "argsort": 4, "topk": 4, "repeat_interleave": 2, "pad": 2, "eye": 2}
# Selecting from a whole vocabulary takes one kernel as long as so many: 45 us on an H100.
WIDE, WIDE_KERNELS = 1024, 15
# The kernel that makes a distribution, with a cut: 12 us for the search alone, measured. The one
# that takes the best codes needs a microsecond for each, estimated: so many are as long as one.
CUT_KERNELS, BEST_CODES = 4, 3
# The kernel that judges drafts, estimated: a row twice, then the children of a node one by one.
ROW_KERNELS, CHILD_KERNELS = 2, 2
NONE = {"empty", "empty_like", "new_empty", "detach_", "lift_fresh", "is_nonzero", "item", "set_"}
# Of a compiled function these need a kernel each, with what is computed from them; a lookup does so
# where the table was made in the same function.
REDUCTIONS = {
    "softmax", "log_softmax", "amax", "max", "sum", "any", "argmax", "linalg_vector_norm",
    "rms_norm", "layer_norm", "cumsum", "cummin", "scatter", "scatter_", "scatter_add",
}  # fmt: skip
# They read as many elements of a table as they return.
LOOKUPS = {"embedding", "gather", "index", "index_select", "take_along_dim"}
WIDTH = 2  # bytes of an element in bf16
WARM, ROUNDS = 2, 6  # rounds that are left out, and that are counted


class Work(NamedTuple):
    """Kernels of one kind that cost the same."""

    kind: str  # of KINDS
    kernels: float
    bytes: float  # of each, read and written
    operations: float  # of each, in matrix products


class Network(NamedTuple):
    """The wide model that a narrow one stands for."""

    scale: int  # what widths are multiplied by
    spec: TransformerSpec  # of the narrow one; a head is as wide in both

    @property
    def widths(self) -> set[int]:
        """Last dimensions that are proportional to the model's width."""
        h, i = self.spec.hidden, self.spec.intermediate
        # 2 h: what an EAGLE head reads; 3 h: queries, keys and values; 2 i: gate and up
        return {h, 2 * h, 3 * h, i, 2 * i}

    def real(self, size: int) -> int:
        """Return the size of a dimension in the wide model."""
        return size * self.scale if size in self.widths else size


class _Masked(Launch):
    """Launches rounds whose trees are smaller than the round's sizes."""

    def round_up(self, shape: RoundShape, largest: RoundShape) -> RoundShape:
        return replace(shape, uniform=False)


def count_rounds(
    session: Session,
    scale: int,
    method: MethodSettings,
    images: int,
    compiles: bool = False,
    masked: bool = False,
) -> list[Work]:
    """Return the work of one round, the mean of some at the start of an image.

    Attention is counted as in the middle of an image, which has half of its tokens in the cache.
    compiles: as with --compile inductor; what it compiles is not compiled here, but counted so.
    masked: as if trees were smaller than the method says, and padded.
    """
    target, *drafter = _networks(session)
    # by identity; later entries win, since a drafter may share the target's head
    kinds = {id(weight): "drafter" for module in drafter for weight in module.parameters()}
    kinds |= {id(weight): "weights" for weight in target.parameters()}
    kinds |= {id(weight): "head" for weight in target.head.parameters()}
    network = Network(scale, session.target.spec)
    counter = _Counter(network, session.target.grid.tokens // 2, kinds)
    jobs = [Job(str(number), "a red fox in the snow", number) for number in range(images)]
    blocks = [m for module in (target, *drafter) for m in module.modules() if isinstance(m, Block)]
    before, chosen = [block.ops for block in blocks], session.target.transformer.kernels
    try:
        session.target.transformer.kernels = counter.choosing()
        engine = session.open_engine(method, images=images)
        engine.runner = _Masked() if masked else engine.runner
        steps = engine.generate(jobs)
        for _ in islice(steps, WARM):
            pass
        counter.work.clear()
        for block in blocks:
            block.ops = _CountedOps(counter)
        with compiling(counter.fusing if compiles else None), counter:
            rounds = sum(1 for _ in islice(steps, ROUNDS))
    finally:
        session.target.transformer.kernels = chosen
        for block, own in zip(blocks, before, strict=True):
            block.ops = own
    return [work._replace(kernels=work.kernels / rounds) for work in counter.work]


class _CountedOps(BlockOps):
    """Torch's steps, each counted as one kernel, and attention as two more."""

    def __init__(self, counter: "_Counter"):
        for name in ("norm", "add_norm", "gate", "attend"):
            setattr(self, name, counter.fusing(getattr(BY_TORCH, name)))


def _networks(session: Session) -> list[nn.Module]:
    """Return the target's network, and the drafter's if there is one."""
    drafter = [] if session.drafter is None else [session.drafter]
    return [session.target.transformer, *drafter]


@dataclass
class _Fused:
    """Small operations of a compiled function, since its last product or the like."""

    kernels: int = 0  # at least; 1 if there are operations at all
    read: dict[int, int] = field(default_factory=dict)  # bytes of what was there before, by address
    made: dict[int, Tensor] = field(default_factory=dict)  # kept, so that no address comes again
    written: int = 0  # bytes of the last result


class _Counter(TorchDispatchMode):
    """Notes the work of every operation.

    In inference mode torch hands operations on before it takes them apart, so a norm or an
    attention is one operation here, as it is one kernel on a GPU.
    """

    def __init__(self, network: Network, cached: int, kinds: Mapping[int, str]):
        """cached: tokens that attention reads in addition to those that are really there."""
        super().__init__()
        self.network, self.cached = network, cached
        self.kinds = kinds  # of weights, by their identity
        self.work: list[Work] = []
        self.fused: _Fused | None = None  # of the compiled function that is running

    def fusing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is counted as if it were compiled."""

        def run(*args: Any, **kwargs: Any) -> Any:
            outside, self.fused = self.fused, self.fused or _Fused()
            try:
                return function(*args, **kwargs)
            finally:
                if outside is None:
                    self._end_kernel()
                    self.fused = None

        return run

    def choosing(self) -> Kernels:
        """Return the steps from logits to tokens, each counted as the kernel that a GPU has."""

        def distribution(
            logits: Tensor, cfg: float, temperature: float, k: int, p: float
        ) -> Tensor:
            result = self._uncounted(log_p_of, logits, cfg, temperature, k, p)
            self._add_kernel(CUT_KERNELS if k or p < 1 else 1, logits, result)
            return result

        def greatest(log_p: Tensor, noise: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
            result = self._uncounted(best, log_p, noise, count)
            read = () if noise is None else (noise,)
            self._add_kernel(1 + count // BEST_CODES, log_p, *read, *result)
            return result

        judging = {
            "judge": self._judge,
            "substitute": lambda log_p, chosen, *given: self._judge(log_p, None, *given),
        }
        return {
            log_p_of.__name__: distribution, best.__name__: greatest, "judging": lambda: judging,
        }  # fmt: skip

    def _judge(
        self, log_p: Tensor, log_q: Tensor | None, tree: Sequence[Tensor], *rest: object
    ) -> tuple[Tensor, Tensor]:
        """Count a kernel that judges nodes; other drafts are accepted than it accepts."""
        self._end_kernel()
        tokens, parents, _, scores = tree
        with _disable_current_modes():
            choices, present = log_p.argmax(-1), scores.isfinite()
            right = (tokens == choices.gather(1, parents)) & present
            drafts = present[:, 1:].long()
            children = torch.zeros_like(parents).scatter_add(1, parents[:, 1:], drafts)
        judged = ROW_KERNELS + CHILD_KERNELS * int(children.max())
        self._add_kernel(judged, log_p, log_p, *([] if log_q is None else [log_q]))
        return right, choices

    def _uncounted(self, function: Callable[..., Any], *args: Any) -> Any:
        self._end_kernel()
        with _disable_current_modes():
            return unwrap(function)(*args)

    def _add_kernel(self, as_long_as: int, *tensors: Tensor) -> None:
        """Count a kernel of ours; as_long_as: so many small ones."""
        moved = sum(map(self._bytes, tensors))
        self.work.append(Work("small", as_long_as, moved / as_long_as, 0))

    def _end_kernel(self) -> None:
        """Count the small operations so far; what follows is another kernel."""
        if (fused := self.fused) is not None and fused.made:
            kernels, moved = max(fused.kernels, 1), sum(fused.read.values()) + fused.written
            self.work.append(Work("small", kernels, moved / kernels, 0))
            self.fused = _Fused()

    def _fuse(self, fused: _Fused, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        inner = name in LOOKUPS and _address(inputs[0]) in fused.made
        fused.kernels += name in REDUCTIONS or inner
        for x in _read(name, inputs, outputs):
            if _address(x) not in fused.made:
                fused.read[_address(x)] = self._bytes(x)
        fused.made |= {_address(x): x for x in outputs}
        fused.written = sum(map(self._bytes, outputs))

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[1]
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if name == "index_put_":  # writes to a part of what it returns
            outputs = inputs[-1:]
        if name in NONE or _is_view(function, inputs, outputs):
            return result
        if name == "scaled_dot_product_attention":
            self.work.append(self._attention(*inputs[:3]))
        elif name == "linear":
            self._end_kernel()
            self.work.append(self._product(*inputs[:2]))  # its bias is part of the same kernel
        elif not (name == "to" and self._is_wide(outputs[0])):
            # (the cache of a CPU is in fp32: a GPU converts neither queries nor keys)
            if self.fused is not None and name not in SEVERAL:
                self._fuse(self.fused, name, inputs, outputs)
                return result
            self._end_kernel()
            moved = sum(self._bytes(x) for x in (*_read(name, inputs, outputs), *outputs))
            wide = name in ("topk", "sort") and inputs[0].shape[-1] > WIDE
            kernels = WIDE_KERNELS if wide else SEVERAL.get(name, 1)
            self.work.append(Work("small", kernels, moved / kernels, 0))
        return result

    def _product(self, x: Tensor, weight: Tensor) -> Work:
        outputs, inputs = map(self.network.real, weight.shape)
        rows = x.numel() // x.shape[-1]
        moved = WIDTH * (inputs * outputs + rows * outputs) + self._bytes(x)
        return Work(self.kinds.get(id(weight), "weights"), 1, moved, 2 * inputs * outputs * rows)

    def _attention(self, queries: Tensor, keys: Tensor, values: Tensor) -> Work:
        rows, heads, n, head_dim = queries.shape
        slots, wide = keys.shape[2] + self.cached, self.network.scale
        # The wide model has more heads, not wider ones. 2: keys and values; queries and outputs.
        moved = WIDTH * wide * rows * head_dim * 2 * (keys.shape[1] * slots + heads * n)
        operations = 4 * wide * rows * heads * n * slots * head_dim
        # one kernel sums up parts of the keys, another joins them
        return Work("cache", 2, moved / 2, operations / 2)

    def _is_wide(self, x: Tensor) -> bool:
        per_head = x.ndim == 4 and x.shape[-1] == self.network.spec.head_dim
        wide = per_head or (x.ndim and x.shape[-1] in self.network.widths)
        return bool(wide) and x.is_floating_point()

    def _bytes(self, x: Tensor) -> int:
        if x.ndim == 5 and 2 * x.shape[-1] == self.network.spec.head_dim:
            # keys and values that move: pairs in fp32, as integers
            return x.numel() * 2 * WIDTH * self.network.scale
        return x.numel() * (WIDTH * self.network.scale if self._is_wide(x) else x.element_size())


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _is_view(function: Any, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """Return whether an operation only looks at memory in another way."""
    # `reshape` copies if it must
    return function.is_view and set(map(_address, outputs)) <= set(map(_address, inputs))


def _read(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> list[Tensor]:
    """Return tensors as large as those that an operation reads."""
    if name in LOOKUPS:
        return outputs
    # what writes to a part of a tensor does not read it
    return inputs[1:] if name.endswith("_") else inputs


def total_bytes(session: Session, scale: int) -> int:
    """Return the bytes of all weights, and of the keys and values of an image, in bf16."""
    spec = session.target.spec
    network = Network(scale, spec)
    # by identity: the drafter may share the target's embedding and head
    weights = {id(w): w for module in _networks(session) for w in module.parameters()}
    elements = sum(prod(map(network.real, weight.shape)) for weight in weights.values())
    width = spec.kv_heads * spec.head_dim * scale
    cached = 2 * 2 * width * spec.layers * spec.max_positions  # keys and values of guidance's rows
    return WIDTH * (elements + cached)
