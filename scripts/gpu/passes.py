"""Timed forward passes of a target and levels of its drafter, both guidance rows of every image."""

import resource
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from decoding.cache import CacheShape, KVCache, attention_dtype
from decoding.cache_pass import chain
from decoding.sampling import SamplingDistribution
from drafters.eagle_head import EagleHead
from models.base import Context, TargetModel, TransformerSpec
from scripts.gpu.modes import Pass, compiled, fixed_context, graphed

_WARM_UP = 3


class Passes:
    """Times passes over images that are half decoded."""

    def __init__(
        self,
        target: TargetModel,
        distribution: SamplingDistribution,
        images: int = 1,
        repeats: int = 20,
    ):
        """repeats: of which the median counts."""
        self.target, self.distribution = target, distribution
        self.images, self.repeats = images, repeats

    def milliseconds(self, run: Callable[[], object]) -> float:
        """Return the median of the repeats, after three for warm-up; waits for the device."""
        found = []
        for _ in range(self.repeats + _WARM_UP):
            started = time.perf_counter()
            run()
            self._wait()
            found.append(1000 * (time.perf_counter() - started))
        return median(found[_WARM_UP:])

    def _wait(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)

    def weight_bytes(self) -> int:
        """Return the bytes of weights that a pass reads: few rows of the embedding are."""
        weights = sum(weight.nbytes for weight in self.target.transformer.parameters())
        return weights - self.target.embedding().nbytes

    def bound(self) -> float:
        """Return the milliseconds of a copy that moves as many bytes as a pass reads weights.

        A copy reads and writes, so half as many are copied.
        """
        source = torch.ones(
            max(self.weight_bytes() // 2, 1), dtype=torch.uint8, device=self.target.device
        )
        place = torch.empty_like(source)
        return self.milliseconds(lambda: place.copy_(source))

    @torch.inference_mode()
    def forward(self, tokens: int) -> float:
        """Return the milliseconds of a target pass, head included, over so many tokens per row."""
        context = self._context(tokens)
        return self.milliseconds(self._pass(tokens, context))

    @torch.inference_mode()
    def compiled(self, tokens: int) -> dict[str, float]:
        """Return the milliseconds of the same pass `compiled`, and as a `compiled graph` on CUDA.

        Raises:
            Skipped: a compiler is missing.
        """
        run = compiled(self._pass(tokens, self._fixed_context(tokens)), self.target.device)
        return {"compiled": self.milliseconds(run)} | self._graph("compiled graph", run)

    @torch.inference_mode()
    def graph(self, tokens: int) -> dict[str, float]:
        """Return the milliseconds of the same pass as a CUDA `graph`; nothing on a CPU."""
        run = self._pass(tokens, self._fixed_context(tokens))
        run()
        return self._graph("graph", run)

    def _graph(self, name: str, run: Pass) -> dict[str, float]:
        if self.target.device.type != "cuda":
            return {}
        return {name: self.milliseconds(graphed(run))}

    def _pass(self, tokens: int, context: Context) -> Pass:
        """Return the pass over random ids."""
        target, ids = self.target, self._ids(tokens)
        return lambda: target.score(target.features(ids, context))

    def _context(self, tokens: int) -> Context:
        cache = self._filled(self.target.spec, tokens)
        return cache.open(*chain(self.images, tokens, self.target.device))

    def _fixed_context(self, tokens: int) -> Context:
        dtype = attention_dtype(self.target.dtype, self.target.device)
        return fixed_context(self._context(tokens), self.target.spec, dtype)

    @torch.inference_mode()
    def level(self, head: EagleHead, width: int) -> float:
        """Return the milliseconds of a draft level: head, logits, distribution of `width` nodes."""
        target, cache = self.target, self._filled(head.spec, width)
        device = target.device
        depths = torch.zeros(self.images, width, dtype=torch.long, device=device)
        visible = torch.eye(width, dtype=torch.bool, device=device).expand(self.images, -1, -1)
        ids = self._ids(width)
        features = torch.randn(*ids.shape, head.spec.hidden, dtype=target.dtype, device=device)

        def run() -> Tensor:
            context: Context = cache.open(depths, visible)
            return self.distribution(target.score(head(ids, features, context)))

        return self.milliseconds(run)

    def _filled(self, spec: TransformerSpec, room: int) -> KVCache:
        """Return a cache of random keys and values up to the middle of every image."""
        target, guidance = self.target, self.distribution.guidance
        prompt = target.prompt("a red fox in the snow", guidance)
        committed = prompt.ids.shape[1] + target.grid.slots(target.grid.tokens // 2)
        shape = CacheShape(self.images, guidance, committed + room)
        cache = KVCache(spec, shape, target.dtype, target.device)
        origins = None if prompt.origins is None else prompt.origins.repeat(self.images)
        cache.reset(prompt.starts.repeat(self.images), origins)
        for memory in cache.memory:
            memory.normal_()
        cache.advance([committed] * self.images)
        return cache

    def _ids(self, count: int) -> Tensor:
        first, size = self.target.vocab.first_id, self.target.vocab.size
        rows = self.images * self.distribution.guidance
        return torch.randint(first, first + size, (rows, count), device=self.target.device)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes, of the GPU or else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
