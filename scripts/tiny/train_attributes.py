"""Train the attribute classifier on rendered scenes: `python -m scripts.tiny.train_attributes`.

Half of the images are reconstructions by the VQGAN (run it after `encode`), the other half are
renders that are blurred, shifted, tinted and made noisy at random, so that the classifier can read
generated images.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drafters.training.schedule import cosine_lr, set_lr
from eval.metrics.attribute_classifier import AttributeClassifier, prompt_accuracy, to_pixels
from eval.metrics.attributes import Labels
from models.codecs.vqgan import load_vqgan
from scenes import scene as scenes
from scripts.tiny.images import Split
from support.log import JsonLog
from support.script import run_script
from support.training_state import load_state, save_state

_LOG_EVERY = 50
_SAVE_EVERY = 100
_PEAK_LR = 2e-3
_TEST_RECONSTRUCTIONS = 300
LABELS = Labels(
    scenes.BACKGROUND_KINDS, scenes.BACKGROUND_COLOURS, scenes.OBJECT_COLOURS, scenes.SHAPES
)
CELLS = 8  # per side
CELL = scenes.IMAGE_SIZE // CELLS  # pixels
_IMAGE_BYTES = scenes.IMAGE_SIZE * scenes.IMAGE_SIZE * 3


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
    worse = torch.cat([degrade(to_pixels(few), generator) for few in images.split(50)])
    worse = ((worse + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
    log.write(event="test", images="degraded", **prompt_accuracy(worse, test.records, model))


@dataclass(frozen=True)
class Targets:
    """What the classifier should say about n scenes.

    Attributes:
        classes: int64 (n, 2), background kind and colour.
        presence: float (n, colours + shapes + pairs) of zeros and ones.
        spots: int64 (objects, 3), one row per object and class that it shows: scene, column of
            `presence`, cell.
    """

    classes: Tensor
    presence: Tensor
    spots: Tensor

    @classmethod
    def of(cls, drawn: list[scenes.Scene]) -> Targets:
        """Return the targets of the scenes, in their order."""
        kinds, grounds = LABELS.background_kinds, LABELS.background_colours
        columns = {
            name: i for i, name in enumerate((*LABELS.colours, *LABELS.shapes, *LABELS.pairs))
        }
        spots = [
            (row, columns[name], item.y // CELL * CELLS + item.x // CELL)
            for row, scene in enumerate(drawn)
            for item in scene.objects
            for name in (item.colour, item.shape, (item.colour, item.shape))
        ]
        where = torch.tensor(spots)
        presence = torch.zeros(len(drawn), len(columns))
        presence[where[:, 0], where[:, 1]] = 1.0
        classes = [
            [kinds.index(s.background.kind), grounds.index(s.background.colour)] for s in drawn
        ]
        return cls(torch.tensor(classes), presence, where)


def reconstruct(
    folder: Path, split: str, vqgan: str | Path, count: int, chunk: int = 50
) -> np.ndarray:
    """Decode the first `count` rows of codes of a split; returns uint8 (count, 128, 128, 3),
    read-only.

    Decoded images are appended to `reconstructed_{split}.bin`; an interrupted call continues there.

    Args:
        folder: work folder with `codes_{split}.npy`, uint16 (n, tokens).
        split: train, validation or test.
        vqgan: folder of the image tokenizer.
        count: how many images.
        chunk: images between two writes.
    """
    path = folder / f"reconstructed_{split}.bin"
    codes = np.load(folder / f"codes_{split}.npy", mmap_mode="r")[:count]
    done = path.stat().st_size // _IMAGE_BYTES if path.exists() else 0
    if done < len(codes):
        tokenizer = load_vqgan(vqgan)
        with path.open("ab") as file:
            file.truncate(done * _IMAGE_BYTES)
            for start in range(done, len(codes), chunk):
                rows = torch.from_numpy(codes[start : start + chunk].astype(np.int64))
                file.write(tokenizer.decode(rows).numpy().tobytes())
                file.flush()
    shape = (len(codes), scenes.IMAGE_SIZE, scenes.IMAGE_SIZE, 3)
    return np.memmap(path, dtype=np.uint8, mode="r", shape=shape)


def batch(train: Split, decoded: np.ndarray, step: int, size: int) -> tuple[Tensor, Targets]:
    """Return pixels, float (size, 3, 128, 128) in [-1, 1], and targets of a step.

    Both depend only on the step. Up to half of the batch are reconstructions, slightly tinted; the
    others are degraded renders.

    Args:
        train: the train split.
        decoded: reconstructions of its first images; may be empty.
        step: number of the step.
        size: images in the batch.
    """
    rng, generator = np.random.default_rng((11, step)), torch.Generator().manual_seed(step)
    share = min(size // 2, len(decoded))
    rendered_rows = np.sort(rng.choice(len(train.records), size - share, replace=False))
    decoded_rows = np.sort(rng.choice(len(decoded), share, replace=False))
    pixels = degrade(to_pixels(torch.from_numpy(train.images[rendered_rows])), generator)
    if share:
        pixels = torch.cat(
            [pixels, _tint(to_pixels(torch.from_numpy(decoded[decoded_rows])), generator)]
        )
    rows = np.concatenate([rendered_rows, decoded_rows])
    return pixels, Targets.of(
        [scenes.sample_scene("train", train.records[row]["index"]) for row in rows]
    )


def degrade(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Imitate the errors of a lossy image code, with a different strength for each image.

    Steps: shift by up to 4 px, blur or sharpen, pull towards the means of 4 px blocks, add smooth
    and fine noise, tint.

    Args:
        pixels: float (images, 3, height, width) in [-1, 1], sides divisible by 8.
        generator: source of the random strengths.
    """
    count, _, height, width = pixels.shape
    draw = _Draw(generator)
    dx, dy = draw.integer(-4, 5), draw.integer(-4, 5)
    padded = F.pad(pixels.contiguous(), (4, 4, 4, 4), mode="replicate")
    pixels = padded[:, :, 4 + dy : 4 + dy + height, 4 + dx : 4 + dx + width]
    blurred = F.avg_pool2d(pixels, 3, stride=1, padding=1, count_include_pad=False)
    pixels = pixels + (blurred - pixels) * draw.uniform(-0.4, 1.2, (count, 1, 1, 1))
    blocks = F.interpolate(F.avg_pool2d(pixels, 4), scale_factor=4)
    pixels = pixels + (blocks - pixels) * draw.uniform(0, 0.4, (count, 1, 1, 1))
    smooth = F.interpolate(
        draw.normal((count, 3, height // 8, width // 8)), (height, width), mode="bilinear"
    )
    pixels = pixels + smooth * draw.uniform(0, 0.12, (count, 1, 1, 1))
    grain = draw.normal((1, 3, height, width))  # one pattern for the batch: drawing is slow
    pixels = pixels + grain * draw.uniform(0, 0.10, (count, 1, 1, 1))
    return _tint(pixels, generator)


def _tint(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Change contrast and brightness of each channel a little."""
    draw, shape = _Draw(generator), (len(pixels), 3, 1, 1)
    return (pixels * draw.uniform(0.9, 1.1, shape) + draw.uniform(-0.08, 0.08, shape)).clamp(-1, 1)


class _Draw:
    """Random tensors from one generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def integer(self, low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=self.generator))

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.generator)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator)


if __name__ == "__main__":
    run_script(train_attributes)
