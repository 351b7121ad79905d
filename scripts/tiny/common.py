"""Small helpers shared by the tiny-model pipeline: JSON-lines log, resumable checkpoints, learning rate."""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from pathlib import Path
from typing import Any

import torch


class JsonLog:
    """Append-only JSON-lines log; each line is flushed and also printed.

    Args:
        path: log file, created (with its folder) when missing, appended to otherwise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, **values: Any) -> None:
        """Append one line holding `values` and the wall-clock time in seconds since the epoch."""
        line = json.dumps({"time": round(time.time(), 2), **values})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that an interruption leaves either the old or the new file, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load_state(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint written by `save_state`; None when there is none.

    Raises:
        ValueError: the file exists but cannot be read.
    """
    if not path.exists():
        return None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: damaged checkpoint; delete it to start again") from error


def cosine_lr(progress: float, peak: float, warmup: float = 0.02, floor: float = 0.02) -> float:
    """Learning rate for a share `progress` in [0, 1] of the run: linear warm-up, then cosine decay.

    Args:
        progress: share of the run that is done; clipped to [0, 1].
        peak: highest rate, reached at `warmup`.
        warmup: share of the run used by the linear rise.
        floor: last rate as a share of `peak`.
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        return peak * max(progress / warmup, 0.01)
    angle = math.pi * (progress - warmup) / (1.0 - warmup)
    return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(angle)))


def fast_precision(device: torch.device) -> torch.dtype:
    """bf16 on GPUs and on CPUs with AVX-512, else fp32: CPUs with less emulate bf16 at a tenth of the speed."""
    native = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def fast_autocast(device: torch.device) -> torch.autocast:
    """Autocast to `fast_precision`; does nothing where that is fp32."""
    precision = fast_precision(device)
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16)


def set_lr(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every parameter group the learning rate `rate`."""
    for group in optimizer.param_groups:
        group["lr"] = rate
