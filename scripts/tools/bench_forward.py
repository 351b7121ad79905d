"""Time forward passes and compare them with the time it takes to read the weights.

`python -m scripts.tools.bench_forward --model anole --model_path work/random_anole --dtype bf16`
"""

import json
import resource
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from configs.fields import refuse
from configs.methods import MethodSettings
from configs.model import EngineSettings
from decoding.cache import CacheShape, KVCache, chain
from models.base import Context, TransformerSpec
from runs.building import sampling_distribution
from runs.session import Session, open_session
from support.script import run_script

_COPIED = 2**28  # bytes


class Bench:
    """Times passes over both guidance rows of one image that is half decoded."""

    def __init__(self, session: Session, repeats: int):
        self.session, self.target, self.repeats = session, session.target, repeats
        self.distribution = sampling_distribution(session.settings.sampling)

    def milliseconds(self, run: Callable[[], object]) -> float:
        """Return the median of the repeats, after three for warm-up; waits for the device."""
        found = []
        for _ in range(self.repeats + 3):
            started = time.perf_counter()
            run()
            self._wait()
            found.append(1000 * (time.perf_counter() - started))
        return median(found[3:])

    def _wait(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)

    def bandwidth(self) -> float:
        """Return how many bytes per second a copy reads and writes."""
        source = torch.ones(_COPIED // 4, device=self.target.device)
        place = torch.empty_like(source)
        return 2 * _COPIED / (self.milliseconds(lambda: place.copy_(source)) / 1000)

    def filled(self, spec: TransformerSpec, room: int) -> KVCache:
        """Return a cache of random keys and values up to the middle of the image."""
        target = self.target
        prompt = target.prompt("a red fox in the snow", self.distribution.guidance)
        shape = CacheShape(1, self.distribution.guidance, spec.max_positions + room)
        cache = KVCache(spec, shape, target.dtype, target.device)
        cache.reset(prompt.starts, prompt.origins)
        for memory in cache.memory:
            memory.normal_()
        cache.advance([prompt.ids.shape[1] + target.grid.slots(target.grid.tokens // 2)])
        return cache

    @torch.inference_mode()
    def forward(self, tokens: int) -> float:
        """Return the milliseconds of a target pass, head included, over so many tokens per row."""
        target, cache = self.target, self.filled(self.target.spec, tokens)
        depths, visible = chain(1, tokens, target.device)
        ids = self._ids(tokens)
        return self.milliseconds(
            lambda: target.score(target.features(ids, cache.open(depths, visible)))
        )

    @torch.inference_mode()
    def level(self, width: int) -> float:
        """Return the milliseconds of a draft level: head, logits and distribution of so many
        nodes.
        """
        head, target = self.session.drafter.network, self.target
        cache = self.filled(head.spec, width)
        depths = torch.zeros(1, width, dtype=torch.long, device=target.device)
        visible = torch.eye(width, dtype=torch.bool, device=target.device)[None]
        ids = self._ids(width)
        features = torch.randn(
            *ids.shape, head.spec.hidden, dtype=target.dtype, device=target.device
        )

        def run() -> Tensor:
            context: Context = cache.open(depths, visible)
            return self.distribution(target.score(head(ids, features, context)))

        return self.milliseconds(run)

    def _ids(self, count: int) -> Tensor:
        first, size = self.target.vocab.first_id, self.target.vocab.size
        return torch.randint(
            first, first + size, (self.distribution.guidance, count), device=self.target.device
        )

    def peak(self) -> int:
        """Return the peak memory in bytes, of the GPU or else of the process."""
        if self.target.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.target.device)
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(bench: Bench, counts: tuple[int, ...], width: int) -> dict[str, Any]:
    """Return milliseconds and bytes: of passes over so many tokens, and of a level of `width`
    nodes.
    """
    target = bench.target
    weights = sum(weight.nbytes for weight in target.transformer.parameters())
    read = weights - target.embedding().nbytes  # a pass reads few of the embedding's rows
    bound = 1000 * read / bench.bandwidth()
    rows = [{"tokens": count, "ms": bench.forward(count)} for count in counts]
    return {
        "rows": [row | {"of_bound": bound / row["ms"]} for row in rows],
        "level_ms": bench.level(width),
        "bound_ms": bound,
        "weights": read,
        "peak": bench.peak(),
    }


def show(figures: dict[str, Any], width: int) -> None:
    """Print the figures as a table."""
    size, bound = figures["weights"] / 2**30, figures["bound_ms"]
    print(f"weights {size:.2f} GiB, read in {bound:.2f} ms at the speed of a copy")
    for row in figures["rows"]:
        share = f"{row['of_bound']:6.1%} of the bound"
        print(f"{row['tokens']:4d} tokens  {row['ms']:9.2f} ms  {share}")
    level, peak = figures["level_ms"], figures["peak"] / 2**30
    print(f"draft level of {width} nodes {level:.2f} ms; peak memory {peak:.2f} GiB")


def bench(
    *,
    model: str = "tiny",
    model_path: str | None = None,
    dtype: str = "fp32",
    tokens: tuple[int, ...] = (1, 16, 32, 59),
    width: int = 10,
    repeats: int = 20,
) -> None:
    """Print a table and, last, one line of JSON.

    Args:
        model, model_path, dtype: the target, as for main.py; its drafter is in its folder.
        tokens: per row and pass: the root and nodes of a tree.
        width: nodes in a draft level.
        repeats: measurements per figure, of which the median is shown.
    """
    counts = (tokens,) if isinstance(tokens, int) else tokens  # fire reads 1,16 as a tuple
    if not all(isinstance(count, int) and count > 0 for count in (*counts, width, repeats)):
        refuse("tokens, --width, --repeats", (tokens, width, repeats), "whole numbers from 1")
    method = MethodSettings(method="eagle2")
    session = open_session(
        EngineSettings(model=model, model_path=model_path, dtype=dtype, method=method)
    )
    figures = measure(Bench(session, repeats), counts, width)
    show(figures, width)
    print(json.dumps(figures | {"hardware": session.hardware()}))


if __name__ == "__main__":
    run_script(bench)
