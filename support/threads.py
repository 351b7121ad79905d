"""How the threads of a CPU wait for each other; has to be decided before torch is loaded.

The threads of OpenMP, which torch and our kernels share, spin while they wait. On an idle machine
that is right: a layer of a small model takes microseconds, and a thread that sleeps wakes up too
late (plain decoding of the included model takes 1.9 times as long). On a busy one a spinning
thread takes the time that the thread it waits for needs: images took 12 to 19 times as long.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # of GNU's and LLVM's OpenMP
_SAMPLES, _PAUSE = 5, 0.01  # seconds between two looks at the number of running threads


def prepare_threads() -> None:
    """Let waiting threads sleep on a busy machine, and start no more than cores may be used.

    Variables that the user has set win. Has no effect once torch is loaded.
    """
    if "torch" in sys.modules:
        return
    cores, visible = usable_cores(), _visible_cores()
    threads = _whole(os.environ.get("OMP_NUM_THREADS"))
    if threads is None and cores < visible:
        os.environ["OMP_NUM_THREADS"] = str(cores)
    threads = threads or cores
    if threads == 1 or any(name in os.environ for name in _VARIABLES):
        return
    if cores < visible or running_elsewhere() + threads > visible:
        os.environ["OMP_WAIT_POLICY"] = "passive"


def usable_cores() -> int:
    """Return how many cores this process may keep busy: those it sees, or less by a quota."""
    return max(1, int(min([_visible_cores(), *_quotas()])))


def running_elsewhere() -> float:
    """Return how many threads of other processes run or wait for a core: the median of some looks.

    0 where the kernel does not tell. Takes 40 ms.
    """
    counts = []
    for sample in range(_SAMPLES):
        if sample:
            time.sleep(_PAUSE)
        lines = _read("/proc/stat").splitlines()
        counts += [int(line.split()[1]) - 1 for line in lines if line.startswith("procs_running ")]
    return median(counts) if counts else 0.0


def _visible_cores() -> int:
    # Linux alone tells which cores a process is bound to
    bound = getattr(os, "sched_getaffinity", None)
    return len(bound(0)) if bound else os.cpu_count() or 1


def _quotas() -> Iterator[float]:
    """Yield how many cores the control group, and those above it, may use on average."""
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        group = Path(path.lstrip("/"))
        for inner in (group, *group.parents):
            if not controllers:  # version 2: both numbers in one file
                limit = _read(f"/sys/fs/cgroup/{inner}/cpu.max")
            elif "cpu" in controllers.split(","):
                files = f"/sys/fs/cgroup/cpu/{inner}/cpu.cfs_"
                limit = _read(f"{files}quota_us") + " " + _read(f"{files}period_us")
            else:
                continue
            words = limit.split()
            if len(words) == 2 and (quota := _whole(words[0]) or -1) > 0:  # "max", -1: no limit
                yield quota / int(words[1])


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # another system, or a file system that is not mounted here
        return ""
