"""A forward pass from codes to distributions as one call of compiled kernels, on a CPU.

What a network makes of some tokens takes eight calls of Python otherwise, and thirty of torch:
masks and positions, embeddings, layers, scores, the sampling distribution.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from decoding.cache import KVCache
from decoding.kernels import steps_for
from decoding.noise import NodeNoise
from decoding.sampling import SamplingDistribution
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from models.base import Layers, TargetModel
from models.fused import MOST_TOKENS, Pass, Weights, weights_of
from models.guidance import SequentialGuidance
from models.linear import Linear
from models.native import Panels, check_size, kernels_of
from models.rotary import rotate_pairs

_N, _AT = ctypes.c_int64, ctypes.c_void_p


class _Noise(ctypes.Structure):
    _fields_ = [("table", _AT), ("rows", _N), ("positions", _N), ("decided", _AT), ("stride", _N)]


_COLUMNS = "tokens", "parents", "depths", "scores", "choices", "path", "emitted", "accepted"


class _Judged(ctypes.Structure):
    _fields_ = [(name, _AT) for name in ("noise", *_COLUMNS, "figures")]


class Whole(ctypes.Structure):
    """A pass over tokens (images, tokens), as `kernels/whole.h` has it.

    latest: how many tokens `block` (images, tokens, latest) knows, with strides. committed:
    (images,) slots. scored: (images,) the only tokens of interest, or null for all. features:
    (rows, tokens, hidden), mixed with embeddings by `mix` and `bias`, or null. found: (rows, n, 1 +
    layers, hidden). logits, log_p: (rows, n, vocab), (images, n, vocab); null for no log p.
    """

    _fields_ = [
        ("opened", Pass),
        *((name, _N) for name in ("images", "guidance", "latest", "last", "first_id", "vocab")),
        *((name, _AT) for name in ("committed", "origins", "codes", "depths", "scored")),
        *((name, _N) for name in ("code_image", "depth_image", "depth_token")),
        *((name, _N) for name in ("block_image", "block_token", "block_slot")),
        *((name, _N) for name in ("pad_row", "feature_row")),
        *(
            (name, _AT)
            for name in ("block", "pads", "embedding", "features", "mix", "bias", "head")
        ),
        *((name, ctypes.c_double) for name in ("cfg", "temperature", "rest")),
        *((name, _AT) for name in ("found", "logits", "log_p", "trees")),
    ]


class Judging:
    """Judges trees by the exact rule, in the same call as the pass over them."""

    def __init__(self, images: int, nodes: int):
        """nodes: the root among them."""
        self.shape, self.noise, self.trees = (images, nodes), _Noise(), _Judged()
        self.figures = torch.empty(images, 7 + 2 * nodes, dtype=torch.float64)
        self.trees.noise = ctypes.addressof(self.noise)
        self.trees.figures = self.figures.data_ptr()

    def take(self, noise: NodeNoise, tree: DraftTree) -> None:
        """Take the trees to judge, the noise at their positions, and room for the outcome."""
        table, decided, own = noise.noise.table, noise.decided, self.noise
        assert table.dtype == tree.scores.dtype
        own.table = None if table.shape[2] == 1 else table.data_ptr()
        own.rows, own.positions = table.shape[1], noise.noise.shape.positions
        own.decided, own.stride = decided.data_ptr(), decided.stride(0)
        self.read = tuple(column.contiguous() for column in tree.columns)  # stays in memory
        found = [torch.empty(self.shape, dtype=torch.long) for _ in range(3)]
        self.found = *found, torch.empty(self.shape[0], dtype=torch.long)
        for name, column in zip(_COLUMNS, (*self.read, *self.found), strict=True):
            setattr(self.trees, name, column.data_ptr())

    def verdict(self) -> Verdict:
        """Return the verdict, after the pass; its figures are valid until the next one."""
        _, path, emitted, accepted = self.found
        return Verdict(accepted, path, emitted, self.figures)


@dataclass(frozen=True)
class Slice:
    """The tokens of a pass.

    codes: (images, n). depths: (images, n) from the committed slots. visible: (images, n, m) bool,
    what they see of the m latest. features: (images, guidance, n, hidden) that a drafter reads
    besides; None for a target. scored: (images,) the only token of interest; None for all.
    """

    codes: Tensor
    depths: Tensor
    visible: Tensor
    features: Tensor | None = None
    scored: Tensor | None = None


class WholePass:
    """Runs a network so, where it can.

    network: with `blocks`, `embedding` and either a final `norm` or, for a drafter, `fc`, which
    mixes embeddings with features. The target's head scores.
    """

    def __init__(
        self,
        network: nn.Module,
        target: TargetModel,
        distribution: SamplingDistribution,
        layers: Layers = (),
    ):
        """layers: whose hidden states are wanted, too."""
        self.network, self.distribution = network, distribution
        self.head: Linear = target.transformer.head
        self.layers = torch.tensor(sorted(layers), dtype=torch.long)
        blocks, spec = network.blocks, network.blocks.spec
        self.blocks, self.spec, self.guidance = blocks, spec, distribution.guidance
        self.mix: Linear | None = getattr(network, "fc", None)
        self.whole = Whole(first_id=target.vocab.first_id, vocab=target.vocab.size)
        self.whole.guidance, self.whole.cfg = self.guidance, distribution.cfg
        self.whole.temperature = distribution.temperature or 1.0
        self.weights: Weights | None = None
        self.changes = -1  # of all copies, when they were looked at
        self.plain = not isinstance(target, SequentialGuidance)

    def fits(self, cache: KVCache, n: int) -> bool:
        """Return whether a pass over n tokens per image can run so now; note where weights are."""
        if not self.plain or not self.blocks.fused or n > MOST_TOKENS or len(cache.memory) > 1:
            return False
        return steps_for(cache.pads) is not None and self._packed()

    def _packed(self) -> bool:
        """Return whether all weights have copies for the kernels, and note where these are."""
        if self.changes == Linear.changes:
            return self.weights is not None
        self.changes, self.weights = Linear.changes, None
        linears = [self.head] if self.mix is None else [self.head, self.mix]
        if not all(isinstance(getattr(each, "packed", None), Panels) for each in linears):
            return False
        if (weights := weights_of(self.blocks)) is None:
            return False
        self._take(weights)
        return True

    def _take(self, weights: Weights) -> None:
        """Note the addresses of the weights."""
        check_size(Whole)
        self.weights, opened, spec = weights, self.whole.opened, self.spec
        opened.hidden, opened.intermediate = spec.hidden, spec.intermediate
        opened.heads, opened.kv_heads, opened.size = spec.heads, spec.kv_heads, spec.head_dim
        opened.pairs = self.blocks.blocks[0].attention.rotate is rotate_pairs
        opened.swin, opened.stop, opened.eps = spec.swin_norm, spec.layers, spec.norm_eps
        opened.kept, opened.numbers = len(self.layers), self.layers.data_ptr()
        self.rotation = self.blocks.rotary.table_in(weights.dtype)
        opened.rotation, opened.layers = self.rotation.data_ptr(), weights.table.buffer_info()[0]
        norm = getattr(self.network, "norm", None)
        opened.norm = None if norm is None else norm.weight.data_ptr()
        self.kernel = kernels_of(weights.dtype).read

    def __call__(
        self,
        cache: KVCache,
        tokens: Slice,
        lap: Callable[[float, float], None],
        judging: Judging | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return features (rows, n, (1 + layers) hidden) and log p (images, n, vocab).

        Called where the pass `fits`. Keys and values go to the cache.

        lap: called with the begin and the end of the time that the network took. judging: of the
        trees whose nodes the tokens are; without cuts only.
        """
        started, whole = time.perf_counter(), self.whole
        images, n, latest = tokens.visible.shape
        each, rows = n if tokens.scored is None else 1, images * self.guidance
        whole.images, whole.latest = images, latest
        committed = self._cache(cache, rows, latest)
        self._tokens(tokens)
        hidden, weight = self.spec.hidden, self.network.embedding.weight
        found = weight.new_empty(rows, each, (1 + len(self.layers)) * hidden)
        logits = weight.new_empty(rows, each, whole.vocab)
        whole.embedding, whole.found, whole.logits = (
            each.data_ptr() for each in (weight, found, logits)
        )
        whole.head, whole.committed = self.head.packed.address, committed.ctypes.data
        log_p = None
        if not self.distribution.cuts:
            log_p = cache.pads.new_empty(images, each, whole.vocab)
            whole.log_p = log_p.data_ptr()
        whole.trees = None if judging is None else ctypes.addressof(judging.trees)
        self.kernel(ctypes.addressof(whole))
        lap(started, time.perf_counter() - whole.rest)
        return found, self.distribution(logits) if log_p is None else log_p

    def _cache(self, cache: KVCache, rows: int, latest: int) -> np.ndarray:
        """Set what a pass reads of the cache; returns its lengths, which must stay in memory."""
        whole, opened, memory = self.whole, self.whole.opened, cache.memory[0]
        opened.rows, opened.slots = rows, cache.used(latest)
        opened.memory = memory.data_ptr()
        opened.layer_stride, opened.row_stride, opened.head_stride = memory.stride()[:3]
        whole.pads, whole.pad_row = cache.pads.data_ptr(), cache.pads.stride(0)
        whole.origins, whole.last = cache.origins.data_ptr(), cache.last_position
        return cache.lengths

    def _tokens(self, tokens: Slice) -> None:
        """Set the tokens of a pass."""
        whole, codes, features = self.whole, tokens.codes, tokens.features
        whole.opened.tokens = codes.shape[1]
        whole.codes, whole.code_image = codes.data_ptr(), codes.stride(0)
        whole.depths = tokens.depths.data_ptr()
        whole.depth_image, whole.depth_token = tokens.depths.stride()
        whole.block = tokens.visible.data_ptr()
        whole.block_image, whole.block_token, whole.block_slot = tokens.visible.stride()
        whole.scored = None if tokens.scored is None else tokens.scored.data_ptr()
        if features is not None:
            assert features.stride(3) == 1 and features.stride(2) == self.spec.hidden
            whole.features, whole.feature_row = features.data_ptr(), features.stride(1)
            mix = self.mix
            whole.mix = mix.packed.address
            whole.bias = None if mix.bias is None else mix.bias.data_ptr()
