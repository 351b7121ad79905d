"""Time the engine's own rounds on a target of Anole's size with random weights.

`python -m scripts.gpu.rounds --model_path work/random_anole --output work/rounds.jsonl`

The same rounds run twice and only the second time counts: by then every CUDA graph that they replay
has been captured. Random weights accept hardly any draft, so trees whose shape follows acceptance
are held at the baseline's depth and width.
"""

import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise, product
from pathlib import Path
from statistics import fmean, median, quantiles

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from configs.command_line import listed_method
from configs.methods import MethodSettings
from configs.model import EngineSettings
from configs.sampling import SamplingSettings
from configs.targets import ROOT
from decoding.engine import StepStats
from decoding.images import Job
from runs.session import Session
from scripts.gpu.record import Figures, Record
from scripts.gpu.tokens import modes_of, open_once, short
from support.devices import pick_device
from support.script import run_script

_RECIPES = ("paper/eagle2", "paper/adt", "paper/lantern", "fast/n58", "fast/block58")
# Windows of drafts are passes over so many tokens with next to nothing around them.
METHODS = (
    "ar",
    *(f"jacobi:window={tokens - 1}" for tokens in (8, 16, 32, 64, 128)),
    "recall",
    *(f"{ROOT}/configs/{name}.yaml" for name in _RECIPES),
)
PROFILED = 5  # rounds
COLUMNS = (
    "id", "nodes", "ms_per_round", "ms_slowest_tenth", "launches", "host_share", "waits",
    "tokens_per_round", "gib", "first_seconds",
)  # fmt: skip


def time_rounds(
    *,
    output: str,
    model_path: str,
    device: str = "auto",
    batches: str = "1,4,8",
    rounds: int = 40,
    methods: str = ",".join(METHODS),
) -> None:
    """Measure and print a table: milliseconds per round, and where they go.

    Args:
        output: file of the figures, which the same command continues.
        model_path: a folder of scripts.tools.random_checkpoint.
        device: auto, cpu, cuda or cuda:N.
        batches: images at once, by commas.
        rounds: how many are timed.
        methods: as in `benchmark --methods`.
    """
    where = pick_device(device)
    record = Record(
        Path(output), where, rounds=rounds, model_path=model_path, cached="half an image"
    )
    settings = EngineSettings(
        model="anole", model_path=model_path, dtype="bf16", device=str(where),
        sampling=SamplingSettings(top_k=2000), method=MethodSettings("eagle2"),
    )  # fmt: skip

    def figures(mode: str, images: int, entry: str) -> Figures:
        session = open_once(replace(settings, compile=mode))
        return measure_rounds(session, held(listed_method(entry, {})), images, rounds)

    sizes = map(int, batches.split(","))
    # --compile is outermost, since each mode loads the weights again.
    for mode, images, entry in product(modes_of(where), sizes, methods.split(",")):
        name = f"{short(entry)}, batch {images}, --compile {mode}"
        record.measure(name, partial(figures, mode, images, entry))
    record.finish("Rounds of a 7B target with random weights", COLUMNS)


def held(method: MethodSettings, depth: float = 5) -> MethodSettings:
    """Return a method whose trees keep one depth, and the baseline's width."""
    if (adt := method.adt) is None:
        return method
    depth, width = min(max(round(depth), adt.d_min), adt.d_max), min(max(10, adt.k_min), adt.k_max)
    limits = {"d_min": depth, "d_max": depth, "d_init": depth}
    limits |= {"k_min": width, "k_max": width, "k_init": width}
    return replace(method, adt=replace(adt, **limits))


@torch.inference_mode()
def measure_rounds(session: Session, method: MethodSettings, images: int, count: int) -> Figures:
    """Return what `count` rounds of so many images at once cost.

    `ms_per_round`, the median, and `ms_slowest_tenth`, which nine of ten rounds stay below;
    `first_seconds`: of the first time, with captures and compilation; on a GPU also `launches`,
    `host_share` (of a round, in which no kernel runs), `waits` for the device and `gib` at most.
    """
    device = session.target.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    engine = session.open_engine(method, images=images)
    # A token a character: with the prompt the cache holds as much as in the middle of an image.
    prompt = ("a red fox in the snow, " * 100)[: session.target.grid.tokens // 2]
    jobs = [Job(str(number), prompt, number) for number in range(images)]
    started = time.perf_counter()
    list(islice(engine.generate(jobs), count))
    first_seconds = time.perf_counter() - started
    rows, ends = [], []
    for step in islice(engine.generate(jobs), count):
        rows += step.rounds  # its figures come from the device, so the round has ended
        ends.append(1000 * time.perf_counter())
    # Without the first round, whose time would hold the prompt's pass.
    times = [end - before for before, end in pairwise(ends)]
    figures = {
        "nodes": fmean(row.nodes for row in rows),
        "ms_per_round": median(times),
        "ms_slowest_tenth": quantiles(times, n=10)[-1],
        "tokens_per_round": fmean(row.accepted + 1 for row in rows),
        "first_seconds": round(first_seconds, 1),
    }
    if device.type == "cuda":
        figures["gib"] = torch.cuda.max_memory_allocated(device) / 2**30
        figures |= _device_work(engine.generate(jobs), figures["ms_per_round"])
        figures["waits"] = _waits(engine.generate(jobs))
    return figures


def _device_work(steps: Iterator[StepStats], milliseconds: float) -> Figures:
    """Return kernel launches per round, and the share of a round's time without a kernel."""
    next(steps)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        count = sum(1 for _ in islice(steps, PROFILED))
    events = [
        event
        for event in profiler.key_averages()
        # annotated ranges would count their kernels' time twice
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    busy = sum(event.self_device_time_total for event in events) / 1000 / count
    # Of a round that was not profiled: the profiler slows the host, not the kernels.
    share = max(0.0, 1 - busy / milliseconds)
    return {"launches": sum(event.count for event in events) / count, "host_share": share}


def _waits(steps: Iterator[StepStats]) -> float:
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
