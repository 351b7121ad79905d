"""Encode the images of a split:
`python -m scripts.tiny.encode --work_dir work/tiny --split train`.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import torch

from models.codecs.vqgan import ImageTokenizer, load_vqgan
from scripts.tiny.codes import open_codes, write_progress
from scripts.tiny.common import fast_precision
from support.log import JsonLog
from support.script import run_script


def encode(
    *,
    work_dir: str = "work/tiny",
    split: str = "train",
    vqgan: str = "ckpts/tiny/tokenizer",
    workers: int = 2,
    chunk: int = 500,
) -> None:
    """Write `codes_{split}.npy`, uint16 (n, tokens), from `images_{split}.npy`.

    The same call continues where it stopped. Convolutions run in bf16 where the CPU has it,
    distances in fp32.

    Args:
        work_dir: folder of the intermediate files.
        split: train, validation or test.
        vqgan: folder with vqgan.yaml and the weights.
        workers: number of processes, one thread each.
        chunk: images between two writes to disk.

    Raises:
        ValueError: the images are missing, or the code file is for another number of images.
    """
    folder = Path(work_dir)
    images_path, codes_path = folder / f"images_{split}.npy", folder / f"codes_{split}.npy"
    if not images_path.exists():
        raise ValueError(f"{images_path}: not found; render the split first")
    count = len(np.load(images_path, mmap_mode="r"))
    codes, first = open_codes(codes_path, (count, int(np.prod(load_vqgan(vqgan).grid))))
    log = JsonLog(folder / f"encode_{split}.jsonl")
    started = time.perf_counter()
    starts = range(first, count, chunk)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        workers, context, initializer=_prepare, initargs=(images_path, vqgan)
    ) as pool:
        for start, part in zip(starts, pool.map(_encode, starts, repeat(chunk)), strict=True):
            done = start + len(part)
            codes[start:done] = part
            codes.flush()
            write_progress(codes_path, done)
            rate = (done - first) / (time.perf_counter() - started)
            log.write(
                event="encode",
                split=split,
                done=done,
                count=count,
                images_per_second=round(rate, 1),
            )
    log.write(event="done", split=split, count=count, codes_used=len(np.unique(codes)))


@dataclass(frozen=True)
class _Worker:
    """What a process keeps from chunk to chunk."""

    images: np.ndarray
    tokenizer: ImageTokenizer


_worker: list[_Worker] = []


def _prepare(images_path: Path, vqgan: str) -> None:
    torch.set_num_threads(1)
    _worker.append(_Worker(np.load(images_path, mmap_mode="r"), load_vqgan(vqgan)))


def _encode(start: int, count: int) -> np.ndarray:
    precision = fast_precision(torch.device("cpu"))
    images = torch.from_numpy(_worker[0].images[start : start + count].copy())
    return (
        _worker[0].tokenizer.encode(images, chunk=2, precision=precision).numpy().astype(np.uint16)
    )


if __name__ == "__main__":
    run_script(encode)
