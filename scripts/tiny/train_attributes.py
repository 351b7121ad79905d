"""Train the attribute classifier on rendered scenes: `python -m scripts.tiny.train_attributes`.

Half of the images are reconstructions by the VQGAN (run it after `encode`), the other half are
renders that are blurred, shifted, tinted and made noisy at random, so that the classifier can read
generated images.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.training.schedule import cosine_lr, set_lr
from eval.metrics.attribute_classifier import AttributeClassifier, prompt_accuracy, to_pixels
from scripts.tiny.attribute_data import LABELS, Split, Targets, batch, degrade, reconstruct
from support.log import JsonLog
from support.script import run_script
from support.training_state import load_state, save_state

_LOG_EVERY = 50
_SAVE_EVERY = 100
_PEAK_LR = 2e-3
_TEST_RECONSTRUCTIONS = 300


def train_attributes(
    *,
    work_dir: str = "work/tiny",
    output: str = "ckpts/tiny/attributes.safetensors",
    vqgan: str = "ckpts/tiny/tokenizer",
    steps: int = 2400,
    batch_size: int = 32,
    reconstructed: int = 1500,
) -> None:
    """Train, then write the classifier and measure it on the test split; continues where it
    stopped.

    Args:
        work_dir: folder with the rendered train and test splits; also holds the log and the
            checkpoint.
        output: classifier file to write.
        vqgan: folder of the image tokenizer that made the codes.
        steps: optimizer steps in all.
        batch_size: images per step.
        reconstructed: images of the train split to decode from their codes; 0 trains on renders
            alone.
    """
    torch.set_num_threads(1)
    folder = Path(work_dir)
    log = JsonLog(folder / "train_attributes.jsonl")
    torch.manual_seed(0)
    model = AttributeClassifier(LABELS).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK_LR, weight_decay=0.01)
    first = _resume(folder / "attributes.pt", model, optimizer)
    train = Split.read(folder, "train")
    decoded = (
        reconstruct(folder, "train", vqgan, reconstructed) if reconstructed else train.images[:0]
    )
    started = time.perf_counter()
    for step in range(first, steps):
        set_lr(optimizer, cosine_lr(step / steps, _PEAK_LR))
        loss = train_step(model, optimizer, *batch(train, decoded, step, batch_size))
        done = step + 1
        if done % _LOG_EVERY == 0 or done == steps:
            rate = (done - first) * batch_size / (time.perf_counter() - started)
            log.write(step=done, loss=round(loss, 4), images_per_second=round(rate, 1))
        if done % _SAVE_EVERY == 0 or done == steps:
            state = {"step": done, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_state(folder / "attributes.pt", state)
    _write(model, Path(output))
    trained, test = AttributeClassifier.load(output), Split.read(folder, "test")
    _measure(trained, test, log)
    if reconstructed:
        images = reconstruct(folder, "test", vqgan, _TEST_RECONSTRUCTIONS)
        scores = prompt_accuracy(images.copy(), test.records[: len(images)], trained)
        log.write(event="test", images="reconstructed", **scores)


def train_step(
    model: AttributeClassifier, optimizer: torch.optim.Optimizer, pixels: Tensor, targets: Targets
) -> float:
    """One optimizer step; returns the loss.

    The cell under an object's centre must show its classes, and the image only the classes present.

    Args:
        model: classifier, put into training mode.
        optimizer: optimizer of its parameters.
        pixels: float (images, 3, 128, 128) in [-1, 1].
        targets: targets of the same images.
    """
    model.train()
    ground, cells = model.cell_logits(pixels.contiguous(memory_format=torch.channels_last))
    kind, ground_colour = ground.split(model.labels.heads()[:2], dim=1)
    loss = F.cross_entropy(kind, targets.classes[:, 0]) + F.cross_entropy(
        ground_colour, targets.classes[:, 1]
    )
    loss = loss + 20 * F.binary_cross_entropy_with_logits(cells.logsumexp(dim=2), targets.presence)
    loss = loss - F.logsigmoid(cells[tuple(targets.spots.T)]).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    return loss.item()


def _resume(path: Path, model: AttributeClassifier, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint if there is one; returns how many steps it has done."""
    state = load_state(path)
    if state is None:
        return 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def _write(model: AttributeClassifier, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)


def _measure(model: AttributeClassifier, test: Split, log: JsonLog) -> None:
    """Log the accuracies on the test split, as rendered and degraded."""
    images = torch.from_numpy(np.array(test.images))
    log.write(event="test", images="clean", **prompt_accuracy(images, test.records, model))
    generator = torch.Generator().manual_seed(0)
    worse = torch.cat([degrade(to_pixels(part), generator) for part in images.split(50)])
    worse = ((worse + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
    log.write(event="test", images="degraded", **prompt_accuracy(worse, test.records, model))


if __name__ == "__main__":
    run_script(train_attributes)
