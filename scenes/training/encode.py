"""Encode the images of a split: `python -m scenes.training.encode --split train`."""

from pathlib import Path

import numpy as np
import torch
from tqdm import trange

from models.codecs.vqgan_files import load_vqgan
from scenes.training.images import Split
from scenes.training.training import fast_precision
from support.devices import pick_device
from support.durable import new_file
from support.script import run_script

_BATCH = 100  # images that are read from disk at once


def encode(
    *, work_dir: str = "work/tiny", split: str = "train", vqgan: str = "ckpts/tiny/tokenizer"
) -> None:
    """Write `codes_{split}.npy`, uint16 (n, tokens), unless as many codes are there.

    Convolutions run in bf16 where it is fast, distances in fp32.

    Args:
        work_dir: folder of the intermediate files.
        split: train, validation or test.
        vqgan: folder with vqgan.yaml and the weights.
    """
    folder, device = Path(work_dir), pick_device("auto")
    images, path = Split.read(folder, split).images, folder / f"codes_{split}.npy"
    if path.exists() and len(np.load(path, mmap_mode="r")) == len(images):
        return
    tokenizer, precision = load_vqgan(vqgan).to(device), fast_precision(device)
    codes = []
    for start in trange(0, len(images), _BATCH, desc=split, mininterval=10.0):
        batch = torch.from_numpy(images[start : start + _BATCH].copy())
        # two at a time: larger batches are no faster on a CPU
        codes.append(tokenizer.encode(batch, chunk=2, precision=precision))
    with new_file(path) as file:
        np.save(file, torch.cat(codes).numpy().astype(np.uint16))


if __name__ == "__main__":
    run_script(encode)
