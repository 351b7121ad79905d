"""Part 2: passes and rounds of a 7B target with random weights, made on the device in bf16."""

from collections.abc import Callable
from functools import cache, partial
from itertools import product

import torch

from configs.methods import MethodSettings
from decoding.flight import Job
from decoding.recorder import CudaGraphs
from decoding.sampling import SamplingDistribution
from drafters.loading import LoadedDrafter
from models.compiled import compile_blocks, leave_blocks, missing_compiler
from runs.methods import build_engine
from scripts.gpu.methods import every_method
from scripts.gpu.options import Options
from scripts.gpu.passes import Passes, peak_memory
from scripts.gpu.record import Figures, Pieces, Skipped
from scripts.gpu.rounds import measure_rounds
from scripts.gpu.shapes import ShapeTarget, random_models

DISTRIBUTION = SamplingDistribution(top_k=2000)


def pieces(options: Options) -> Pieces:
    """Return the measurements of this part by name; those of single images come first."""
    sizes = options.sizes
    found: dict[str, Callable[[], Figures]] = {"bound": partial(bound, options)}
    found["level"] = partial(level, options)
    for images in sizes.images:
        for tokens in sizes.tokens:
            found[f"{images} x {tokens} tokens"] = partial(forward, options, images, tokens)
        for name in sizes.rounds_of:
            method = every_method(sizes.nodes)[name]
            piece = partial(rounds, options, images, method)
            found[f"rounds of {name}, batch {images}"] = piece
            found[f"rounds of {name}, batch {images}, replayed"] = partial(piece, replayed=True)
    for images, tokens in sizes.compiled:
        found[f"compiled {images} x {tokens} tokens"] = partial(compiled, options, images, tokens)
    for images, name in product(sizes.images, sizes.rounds_of):
        piece = partial(inductor_rounds, options, images, every_method(sizes.nodes)[name])
        found[f"rounds of {name}, batch {images}, inductor"] = piece
    return found


@cache
def models(options: Options) -> tuple[ShapeTarget, LoadedDrafter]:
    """Return the target and its drafter."""
    sizes = options.sizes
    return random_models(sizes.scale, sizes.layers, sizes.side, torch.bfloat16, options.device)


def _passes(options: Options, images: int = 1) -> Passes:
    return Passes(models(options)[0], DISTRIBUTION, images, options.sizes.repeats)


def bound(options: Options) -> Figures:
    """Return `bound_ms`: how long a copy takes that moves as many bytes as the weights are."""
    passes = _passes(options)
    milliseconds, size = passes.bound(), passes.weight_bytes()
    return {"bound_ms": milliseconds, "weights": size, "gb_per_s": size / milliseconds / 1e6}


def forward(options: Options, images: int, tokens: int) -> Figures:
    """Return `ms` by mode, eager and as a graph, of a pass over so many tokens per row."""
    passes = _passes(options, images)
    milliseconds = {"eager": passes.forward(tokens)} | passes.graph(tokens)
    return {"images": images, "tokens": tokens, "ms": milliseconds}


def compiled(options: Options, images: int, tokens: int) -> Figures:
    """Return `ms` by mode of the same pass when it is compiled."""
    milliseconds = _passes(options, images).compiled(tokens)
    return {"images": images, "tokens": tokens, "ms": milliseconds}


def level(options: Options) -> Figures:
    """Return `ms` of a draft level of one image, eager."""
    head = models(options)[1].network
    return {"width": options.sizes.width, "ms": _passes(options).level(head, options.sizes.width)}


def rounds(
    options: Options, images: int, method: MethodSettings, replayed: bool = False
) -> Figures:
    """Return what rounds of a method cost, and the peak memory in bytes up to their end.

    Raises:
        Skipped: `replayed`, and the device has no graphs.
    """
    if options.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(options.device)
    elif replayed:
        raise Skipped("only a CUDA device has graphs")
    recorder = CudaGraphs() if replayed else None
    engine = build_engine(*models(options), DISTRIBUTION, method, images, recorder=recorder)
    jobs = [Job(str(number), "a red fox in the snow", number) for number in range(images)]
    figures = measure_rounds(engine, jobs, options.sizes.rounds)
    return {"images": images} | figures | {"peak": peak_memory(options.device)}


def inductor_rounds(options: Options, images: int, method: MethodSettings) -> Figures:
    """Return what `rounds` does of replayed rounds whose layers torch compiled; so raises Skipped.

    The first of them compile, for minutes.
    """
    if missing := missing_compiler(options.device):
        raise Skipped(missing)
    target, drafter = models(options)
    networks = target.transformer, drafter.network
    compile_blocks(*networks)
    try:
        return rounds(options, images, method, replayed=True)
    finally:
        leave_blocks(*networks)
