"""Time the engine's own rounds on a target of Anole's size with random weights.

`python -m scripts.gpu.rounds --model_path work/random_anole --output work/measurements.jsonl`

The same rounds run twice and only the second time counts: by then every CUDA graph that they replay
has been captured. All methods are timed before any is profiled, because after the first profile of
a process, launching a CUDA graph takes up to 1.2 ms instead of 0.03 ms. Random weights accept
hardly any draft, so trees whose shape follows acceptance are held at the baseline's depth and
width, or have the sizes of a finished run: an entry of --methods may be its folder.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise, product
from pathlib import Path
from statistics import fmean, median, quantiles

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from configs.methods import AdtSettings, MethodSettings
from configs.model import EngineSettings, SamplingSettings
from configs.recipes import listed_method
from configs.targets import ROOT
from decoding.engine import StepStats
from decoding.images import FinishedImage, Job, RoundStats
from eval.bench.measurements import Measurements
from scripts.gpu.cells import Cells, Figures
from scripts.gpu.tokens import open_once, short, ways_of
from scripts.gpu.traces import RecordedTrees, read_trace
from support.border import ran_out_of_memory
from support.devices import pick_device
from support.output import first_line
from support.script import run_script

_RECIPES = ("paper/eagle2", "paper/adt", "paper/lantern", "fast/n58", "fast/block58")
# Windows of drafts are passes over so many tokens with next to nothing around them.
METHODS = (
    "ar",
    *(f"jacobi:window={tokens - 1}" for tokens in (16, 64, 128)),
    "recall",
    *(f"{ROOT}/configs/{name}.yaml" for name in _RECIPES),
)
PROFILED = 5  # rounds
Rounds = Callable[[], Iterator[StepStats[FinishedImage]]]  # starts the same rounds at each call
COLUMNS = (
    "id", "nodes", "ms_per_round", "ms_mean", "ms_slowest_tenth", "launches", "host_share",
    "waits", "tokens_per_round", "gib", "first_seconds",
)  # fmt: skip


def time_rounds(
    *,
    output: str,
    model_path: str,
    device: str = "auto",
    batches: str = "1,8",
    rounds: int = 24,
    methods: str = ",".join(METHODS),
) -> None:
    """Measure and print a table: milliseconds per round, and where they go.

    Args:
        output: file of measurements, which the same command continues.
        model_path: a folder of scripts.tools.random_checkpoint, of a full Anole.
        device: auto, cpu, cuda or cuda:N.
        batches: images at once, by commas; with other values of --compile only the first.
        rounds: how many are timed.
        methods: as in `benchmark --methods`, or folders of `generate_images --trace` with adt or
            eagle2, whose trees are replayed.
    """
    where = pick_device(device)
    table, path = Cells(), Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = EngineSettings(
        model="anole", model_path=model_path, dtype="bf16", device=str(where),
        sampling=SamplingSettings(top_k=2000), method=MethodSettings("eagle2"),
    )  # fmt: skip

    def opened(mode: str, images: int, entry: str) -> Rounds:
        session = open_once(replace(settings, compile=mode))
        engine = session.open_engine(method_of(entry), images=images)
        if engine.speculation is not None and Path(entry).is_dir():
            policy = RecordedTrees(read_trace(entry), engine.speculation.policy.largest)
            engine.speculation = replace(engine.speculation, policy=policy)
        # A token a character: with the prompt the cache holds as much as in the middle of an image.
        prompt = ("a red fox in the snow, " * 100)[: session.target.grid.tokens // 2]
        return partial(engine.generate, [Job(str(n), prompt, n) for n in range(images)])

    def keeping(
        mode: str, images: int, entry: str, what: str, figures: Callable[[], Figures]
    ) -> Figures:
        """Return the figures of the file of measurements; make and keep them if they lack."""
        kept = Measurements(path, replace(settings, compile=mode, batch_size=images))
        recorded = f" of {entry}" if Path(entry).is_dir() else ""
        given = kept.conditions(method_of(entry)) | {what: f"{rounds} rounds{recorded}"}
        if (line := kept.find(given)) is None:
            kept.add((given, line := {"figures": figures()}))
        return line["figures"]

    sizes = [int(size) for size in batches.split(",")]
    cells = {
        f"{short(entry)}, batch {images}, --compile {mode}": (
            images, partial(keeping, mode, images, entry), partial(opened, mode, images, entry)
        )
        for (mode, entry), images in product(ways_of(where, methods), sizes)
        if mode == "auto" or images == sizes[0]
    }  # fmt: skip
    for name, (images, kept, cell) in cells.items():
        figures = partial(kept, "timed", partial(measure_rounds, cell, rounds, where))
        table.add(name, partial(if_it_fits, figures) if images > min(sizes) else figures)
    # Backwards, since the model of the last --compile is still loaded and compiled.
    for name, (_, kept, cell) in reversed(cells.items()):
        if where.type == "cuda" and (ms := table.rows[name].get("ms_per_round")) is not None:
            table.add(name, partial(kept, "profiled", partial(profile_rounds, cell, rounds, ms)))
    table.finish("Rounds of a 7B target with random weights", COLUMNS)


def method_of(entry: str) -> MethodSettings:
    """Return the method of an entry of --methods."""
    return read_trace(entry).method if Path(entry).is_dir() else held(listed_method(entry, {}))


def if_it_fits(figures: Callable[[], Figures]) -> Figures:
    """Return the figures; out of memory is a ValueError, by which a record skips the row."""
    try:
        return figures()
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        raise ValueError(first_line(error)) from error


def held(method: MethodSettings, depth: float = 5) -> MethodSettings:
    """Return a method whose trees keep one depth, and the baseline's width."""
    if not isinstance(adt := method.own, AdtSettings):
        return method
    depth, width = min(max(round(depth), adt.d_min), adt.d_max), min(max(10, adt.k_min), adt.k_max)
    own = replace(adt, d_min=depth, d_max=depth, d_init=depth)
    return replace(method, own=replace(own, k_min=width, k_max=width, k_init=width))


@torch.inference_mode()
def measure_rounds(opened: Callable[[], Rounds], count: int, device: torch.device) -> Figures:
    """Return how long `count` rounds take.

    `ms_per_round`, the median, `ms_mean`, and `ms_slowest_tenth`, which nine of ten rounds stay
    below; `first_seconds`: of the first time, with captures and compilation; on a GPU also `gib`
    at most.
    """
    start = opened()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    list(islice(start(), count))
    first_seconds = time.perf_counter() - started
    rows: list[RoundStats] = []
    ends: list[float] = []
    for step in islice(start(), count):
        rows += step.rounds  # its figures come from the device, so the round has ended
        ends.append(1000 * time.perf_counter())
    # Without the first round, whose time would hold the prompt's pass.
    times = [end - before for before, end in pairwise(ends)]
    figures = {
        "nodes": fmean(row.nodes for row in rows),
        "ms_per_round": median(times),
        "ms_mean": fmean(times),
        "ms_slowest_tenth": quantiles(times, n=10)[-1],
        "tokens_per_round": fmean(row.accepted + 1 for row in rows),
        "first_seconds": round(first_seconds, 1),
    }
    if device.type == "cuda":
        figures["gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return figures


@torch.inference_mode()
def profile_rounds(opened: Callable[[], Rounds], count: int, milliseconds: float) -> Figures:
    """Return where the time of a round goes, on a GPU.

    `launches` of kernels per round, `host_share` (of a round, in which no kernel runs) and `waits`
    for the device per round, not counting the one for its outcome. count: rounds that capture CUDA
    graphs first; milliseconds: of a timed round.
    """
    start = opened()
    list(islice(start(), count))
    steps = start()
    next(steps)
    torch.cuda.synchronize()  # the round after it may have begun
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        profiled = sum(1 for _ in islice(steps, PROFILED))
    events = [
        event
        for event in profiler.key_averages()
        # annotated ranges would count their kernels' time twice
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    busy = sum(event.self_device_time_total for event in events) / 1000 / profiled
    return {
        "launches": sum(event.count for event in events) / profiled,
        # Of a round that was not profiled: the profiler slows the host, not the kernels.
        "host_share": max(0.0, 1 - busy / milliseconds),
        "waits": _waits(start()),
    }


def _waits(steps: Iterator[StepStats[FinishedImage]]) -> float:
    """Return how often a round waits for the device, by CUDA's own warnings."""
    next(steps)
    # By default some of torch's warnings appear only once in a process.
    torch.set_warn_always(True)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            count = sum(1 for _ in islice(steps, PROFILED))
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.set_warn_always(False)
    return sum("synchronizing" in str(warning.message) for warning in caught) / count


if __name__ == "__main__":
    run_script(time_rounds)
