"""Weights are in memory once while they are read:
anonymous memory never rises far above what stays.
"""

import ctypes
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import Sizes, write_checkpoint, write_shards

from configs.schema import ROOT
from models.base import TargetOptions
from models.registry import load_target

SIZES = Sizes(hidden=512, layers=8, heads=8, kv_heads=8)


def store(folder: Path, kind: str) -> Path:
    """A made-up checkpoint of 85 MB in files of this kind."""
    write_checkpoint(folder, SIZES)
    if kind.startswith("sharded"):
        write_shards(folder, kind.split()[1])
    elif kind == "bin":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder


def anonymous() -> int:
    """Bytes of this process's memory that no file backs (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def peak(load: Callable[[], object]) -> int:
    """The most bytes that loading takes at a time."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier loads have freed goes back
    before, done, seen = anonymous(), threading.Event(), [0]

    def watch() -> None:
        while not done.is_set():
            seen[0] = max(seen[0], anonymous())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    load()
    done.set()
    watcher.join()
    return seen[0] - before


def ours(folder: Path) -> object:
    return load_target("tiny", str(folder), TargetOptions(torch.float32, torch.device("cpu")))


def greedy(folder: Path) -> object:
    """A loader that reads everything first: the control."""
    files = [*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")]
    read = {
        file: load_file(file) if file.suffix == ".safetensors" else torch.load(file)
        for file in files
    }
    state = [value.clone() for part in read.values() for value in part.values()]
    return ours(folder), state


def measure(folders: list[str]) -> list[int]:
    """Peaks of our loader, folder by folder, and of the control on the last."""
    ours(Path(folders[0]))  # the first load also imports the codec's library
    peaks = [peak(lambda name=name: ours(Path(name))) for name in folders]
    return [*peaks, peak(lambda: greedy(Path(folders[-1])))]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_second_copy(tmp_path) -> None:
    """In a process of its own, whose memory nothing else changes."""
    folders = [store(tmp_path / kind, kind) for kind in ("sharded safetensors", "bin")]
    size = (folders[1] / "pytorch_model.bin").stat().st_size
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *map(str, folders)]
    done = subprocess.run(
        command, env=paths, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    *shares, control = [found / size for found in json.loads(done.stdout)]
    assert max(shares) < 1.5 and control > 1.8, (shares, control)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1:])))
