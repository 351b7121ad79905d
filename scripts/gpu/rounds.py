"""What rounds of the engine cost: time, launches, the device's share of the time; and profiles."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from decoding.engine import Engine, StepStats
from decoding.flight import Job
from scripts.gpu.record import Figures

_WARM_UP, _PROFILED = 3, 5


class Launches(TorchDispatchMode):
    """Counts the operations that reach a device, by name; views of a tensor do not."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        returns = [value.alias_info for value in function._schema.returns]
        if not any(alias is not None and not alias.is_write for alias in returns):
            self.count[function._schema.name] += 1
        return function(*args, **(kwargs or {}))


def measure_rounds(engine: Engine, jobs: list[Job], rounds: int) -> Figures:
    """Decode the first rounds of these jobs.

    Returns `ms_per_round`, `tau` so far, `launches` per round, and on a GPU `busy_ms`, in which its
    kernels run, and `host_share`, the share of a round in which none runs. On a CPU launches are
    dispatched operations, and there is no share.
    """
    steps = engine.generate(jobs)
    _drain(steps, _WARM_UP)
    times, accepted = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        step = next(steps, None)  # its figures come back from the device: it has been waited for
        if step is None:
            break
        times.append(1000 * (time.perf_counter() - started))
        accepted += [row.accepted + 1 for row in step.rounds]
    if not times:
        raise ValueError(f"the images ended within {_WARM_UP} rounds; allowed: larger images")
    spent = {"ms_per_round": median(times), "tau": sum(accepted) / len(accepted)}
    on_gpu = engine.target.device.type == "cuda"
    return spent | (_device_work(steps, spent["ms_per_round"]) if on_gpu else _operations(steps))


def _drain(steps: Iterator[StepStats], count: int) -> int:
    """Run up to so many rounds; returns how many there were."""
    return sum(1 for _ in islice(steps, count))


def _operations(steps: Iterator[StepStats]) -> Figures:
    with Launches() as launches:
        found = _drain(steps, _PROFILED)
    each = sum(launches.count.values()) / found if found else None
    return {"launches": each, "busy_ms": None, "host_share": None}


def _device_work(steps: Iterator[StepStats], milliseconds: float) -> Figures:
    """Return launches and busy milliseconds per round; milliseconds: of a round, not profiled."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        found = _drain(steps, _PROFILED)
    if not found:
        return {"launches": None, "busy_ms": None, "host_share": None}
    events = [
        event
        for event in profiler.key_averages()
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    busy = sum(event.self_device_time_total for event in events) / 1000 / found
    launches = sum(event.count for event in events) / found
    share = max(0.0, 1 - busy / milliseconds)
    return {"launches": launches, "busy_ms": busy, "host_share": share}


def write_profile(engine: Engine, jobs: list[Job], place: Path) -> Figures:
    """Profile some rounds; writes `<place>.json`, a chrome trace, and `<place>.txt`, a table.

    Returns the files, and the operation that takes most time.
    """
    steps = engine.generate(jobs)
    _drain(steps, _WARM_UP)
    kinds = [ProfilerActivity.CPU]
    on_gpu = engine.target.device.type == "cuda"
    kinds += [ProfilerActivity.CUDA] if on_gpu else []
    with profile(activities=kinds) as profiler:
        found = _drain(steps, _PROFILED)
    key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    averages = profiler.key_averages()
    trace, table = place.with_suffix(".json"), place.with_suffix(".txt")
    profiler.export_chrome_trace(str(trace))
    table.write_text(averages.table(sort_by=key, row_limit=40) + "\n", encoding="utf-8")
    first = max(averages, key=lambda event: getattr(event, key))
    files = [trace.name, table.name]
    return {"rounds": found, "files": files, "most_time": first.key}
