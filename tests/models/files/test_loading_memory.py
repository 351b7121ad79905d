"""Weights are in memory once while they are read."""

import ctypes
import gc
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from browser import only_in_all
from ran import ran
from small import loaded, store_weights, write_shards

from configs.schema import ROOT
from scripts.checkpoints.chameleon import Sizes, write_checkpoint

SIZES = Sizes(hidden=512, layers=8, heads=8, kv_heads=8)  # 85 MB


def anonymous() -> int:
    """Bytes of this process's memory that no file backs (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def peak(load: Callable[[], object]) -> int:
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


def greedy(folder: Path) -> object:
    """A loader that reads everything first: the control."""
    state = torch.load(folder / "pytorch_model.bin")
    return [value.clone() for value in state.values()], loaded(folder)


def measure(folders: list[str]) -> list[int]:
    loaded(Path(folders[0]))  # the first load also imports the codec's library
    peaks = [peak(lambda name=name: loaded(Path(name))) for name in folders]
    return [*peaks, peak(lambda: greedy(Path(folders[-1])))]


@only_in_all  # eight seconds
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_second_copy(tmp_path) -> None:
    """In a process of its own, whose memory nothing else changes."""
    folders = [write_checkpoint(tmp_path / name, SIZES) for name in ("shards", "single")]
    write_shards(folders[0], "safetensors")
    size = store_weights(folders[1], "bin").stat().st_size
    done = ran([sys.executable, __file__, *folders], PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    assert done.returncode == 0, done.stderr
    *shares, control = [found / size for found in json.loads(done.stdout)]
    assert max(shares) < 1.5 and control > 1.8, (shares, control)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1:])))
