"""Weights are in memory once while they are read: anonymous memory never rises far above what stays."""

from __future__ import annotations

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
from models.registry import load_target

KINDS = ("safetensors", "sharded safetensors", "bin", "sharded bin")
SIZES = Sizes(hidden=512, layers=16, heads=8, kv_heads=8)


def store(folder: Path, kind: str) -> Path:
    """A made-up checkpoint of 170 MB in files of this kind."""
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


def overshoot(load: Callable[[], object]) -> float:
    """Peak above what stays, as a share of what stays."""
    gc.collect()
    before, done, seen = anonymous(), threading.Event(), [0]

    def watch() -> None:
        while not done.is_set():
            seen[0] = max(seen[0], anonymous())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    kept = load()
    done.set()
    watcher.join()
    after = anonymous()
    assert kept is not None
    return (seen[0] - after) / (after - before)


def measure(folder: Path) -> dict[str, float]:
    """Ours, and a loader that reads everything first."""

    def ours() -> object:
        return load_target("tiny", str(folder), torch.float32, torch.device("cpu"))

    def greedy() -> object:
        files = [*folder.glob("model*.safetensors"), *folder.glob("pytorch_model*.bin")]
        state = {}
        for file in files:
            part = load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)
            state |= {key: value.clone() for key, value in part.items()}
        return ours()

    return {"ours": overshoot(ours), "greedy": overshoot(greedy)}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_no_second_copy(kind, tmp_path) -> None:
    """In a process of its own, whose memory nothing else changes."""
    command = [sys.executable, __file__, str(store(tmp_path / "model", kind))]
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(command, env=paths, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert found["ours"] < 0.3 and found["greedy"] > 0.6, found


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
