"""Training data of the attribute classifier: scenes, degraded or reconstructed by the VQGAN."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eval.metrics.attribute_classifier import to_pixels
from eval.metrics.attributes import Labels
from models.codecs.vqgan import load_vqgan
from scenes import scene as scenes

LABELS = Labels(
    scenes.BACKGROUND_KINDS, scenes.BACKGROUND_COLOURS, scenes.OBJECT_COLOURS, scenes.SHAPES
)
CELLS = 8  # per side
CELL = scenes.IMAGE_SIZE // CELLS  # pixels
_IMAGE_BYTES = scenes.IMAGE_SIZE * scenes.IMAGE_SIZE * 3


@dataclass(frozen=True)
class Split:
    """Images, uint8 (n, 128, 128, 3), and one caption record per image."""

    images: np.ndarray
    records: list[dict]

    @classmethod
    def read(cls, folder: Path, name: str) -> Split:
        """Open `images_{name}.npy`, which stays on disk, and `captions_{name}.jsonl`."""
        with (folder / f"captions_{name}.jsonl").open(encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        return cls(np.load(folder / f"images_{name}.npy", mmap_mode="r")[: len(records)], records)


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
