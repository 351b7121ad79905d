"""Threads of a CPU: how they wait is set before torch is loaded, by load and quota."""

import os
import subprocess
import sys
import time

import pytest

from configs.targets import ROOT
from support import threads

FILES = {
    "/proc/stat": "cpu 1 2 3\nprocs_running 1\n",
    "/proc/self/cgroup": "0::/user/job\n",
}


@pytest.fixture
def machine(monkeypatch):
    """A machine of four idle cores without a quota; files can be added."""
    files = dict(FILES)
    monkeypatch.setattr(threads, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(threads, "_visible_cores", lambda: 4)
    monkeypatch.setattr(threads, "_PAUSE", 0)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in ("OMP_NUM_THREADS", *threads._VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return files


def test_an_idle_machine_keeps_its_defaults(machine) -> None:
    threads.prepare_threads()
    assert "OMP_WAIT_POLICY" not in os.environ and "OMP_NUM_THREADS" not in os.environ


def test_threads_sleep_where_others_need_the_cores(machine) -> None:
    machine["/proc/stat"] = "procs_running 3\n"
    threads.prepare_threads()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


def test_fewer_threads_leave_cores_to_others(machine, monkeypatch) -> None:
    machine["/proc/stat"] = "procs_running 3\n"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    threads.prepare_threads()
    assert "OMP_WAIT_POLICY" not in os.environ


@pytest.mark.parametrize("name", threads._VARIABLES)
def test_the_users_variables_win(machine, monkeypatch, name) -> None:
    machine["/proc/stat"] = "procs_running 9\n"
    monkeypatch.setenv(name, "12345")
    threads.prepare_threads()
    assert os.environ[name] == "12345"
    assert sum(variable in os.environ for variable in threads._VARIABLES) == 1


@pytest.mark.parametrize(
    "files, cores",
    [
        ({"/sys/fs/cgroup/user/job/cpu.max": "max 100000"}, 4),
        ({"/sys/fs/cgroup/user/job/cpu.max": "250000 100000"}, 2),
        ({"/sys/fs/cgroup/user/cpu.max": "50000 100000"}, 1),  # of the group above
        ({"/sys/fs/cgroup/user/job/cpu.max": "900000 100000"}, 4),
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/job\n",
                "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "200000",
                "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            {
                "/proc/self/cgroup": "4:cpu:/job\n",
                "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1",
                "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            4,
        ),
    ],
)
def test_a_quota_counts_as_cores(machine, files, cores) -> None:
    machine.update(files)
    threads.prepare_threads()
    assert threads.usable_cores() == cores
    assert os.environ.get("OMP_NUM_THREADS") == (None if cores == 4 else str(cores))
    assert ("OMP_WAIT_POLICY" in os.environ) == (1 < cores < 4)


ENTRIES = {
    "command line": "main.main(['inspect', '--model', 'tiny'])",
    "python": "import adt_tree",
}


def ran_without_variables(code: str, **variables: str) -> str:
    """What a program prints that finds none of the variables of OpenMP but these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    options = {"env": kept | variables, "cwd": ROOT, "text": True, "check": True}
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, **options).stdout


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_prepares_them_before_torch(entry) -> None:
    """The program ends where it imports torch, which takes seconds."""
    code = (
        "import main, os, sys, support.threads as threads; threads.running_elsewhere = lambda: 99\n"
        "class Finder:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'torch':\n"
        "            os._exit(print(os.environ['OMP_WAIT_POLICY'], flush=True) or 0)\n"
        "sys.meta_path.insert(0, Finder)\n"
        f"threads._visible_cores = lambda: 2\n{ENTRIES[entry]}\nprint('no torch')"
    )
    assert ran_without_variables(code).split()[-1] == "passive"


@pytest.mark.skipif("ADT_TEST_ALL" not in os.environ, reason="times a loaded machine")
def test_a_loaded_machine_costs_little_more_than_one_thread_does() -> None:
    """About as much, 1.5 times at worst; with threads that spin it was 12 times."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    code = (
        "import time; from adt_tree import Pipeline; pipe = Pipeline.from_pretrained('tiny', "
        "method='ar'); pipe('a red circle', seed=0); begin = time.time(); "
        "pipe('a blue square', seed=1); print(time.time() - begin)"
    )
    try:
        time.sleep(0.5)
        one, ours = (
            min(float(ran_without_variables(code, **variables)) for _ in range(2))
            for variables in ({"OMP_NUM_THREADS": "1"}, {})
        )
    finally:
        for process in busy:
            process.kill()
    assert ours <= 2 * one
