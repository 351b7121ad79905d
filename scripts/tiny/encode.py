"""Encode the images of a split: `python -m scripts.tiny.encode --split train`."""

import json
import math
import time
from pathlib import Path

import numpy as np
import torch

from models.codecs.vqgan_files import load_vqgan
from scripts.tiny.images import Split, open_array
from scripts.tiny.training import fast_precision
from support.devices import pick_device
from support.durable import replace_file
from support.json_files import JsonLog
from support.script import run_script


def encode(
    *,
    work_dir: str = "work/tiny",
    split: str = "train",
    vqgan: str = "ckpts/tiny/tokenizer",
    chunk: int = 500,
) -> None:
    """Write `codes_{split}.npy`, uint16 (n, tokens); the same call continues where it stopped.

    Convolutions run in bf16 where it is fast, distances in fp32.

    Args:
        work_dir: folder of the intermediate files.
        split: train, validation or test.
        vqgan: folder with vqgan.yaml and the weights.
        chunk: images between two writes to disk.

    Raises:
        ValueError: the images are missing, or the code file is for another number of images.
    """
    folder, device = Path(work_dir), pick_device("auto")
    images, tokenizer = Split.read(folder, split).images, load_vqgan(vqgan).to(device)
    path = folder / f"codes_{split}.npy"
    progress = path.with_suffix(".done.json")
    codes = open_array(path, np.uint16, (len(images), math.prod(tokenizer.grid)))
    first = json.loads(progress.read_text(encoding="utf-8"))["images"] if progress.exists() else 0
    log, started = JsonLog(folder / f"encode_{split}.jsonl"), time.perf_counter()
    for start in range(first, len(images), chunk):
        stop = min(start + chunk, len(images))
        batch = torch.from_numpy(images[start:stop].copy())
        # two at a time: larger batches are no faster on a CPU
        new = tokenizer.encode(batch, chunk=2, precision=fast_precision(device))
        codes[start:stop] = new.numpy()
        codes.flush()  # before the number that says these codes are there
        replace_file(progress, json.dumps({"images": stop}).encode())
        rate = round((stop - first) / (time.perf_counter() - started), 1)
        log.write(split=split, done=stop, count=len(images), images_per_second=rate)
    log.write(split=split, count=len(images), codes_used=len(np.unique(codes)))


if __name__ == "__main__":
    run_script(encode)
