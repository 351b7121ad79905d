"""Training of the attribute classifier on rendered scenes.

Half of the images are reconstructions by the VQGAN, the other half are renders that are blurred,
shifted, tinted and made noisy at random, so that the classifier can read generated images.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.schema import CLASSIFIER
from models.codecs.vqgan_files import load_vqgan
from scenes import scene as scenes
from scenes.attribute_classifier import (
    AttributeClassifier,
    Labels,
    prompt_accuracy,
    to_pixels,
)
from scenes.training.images import Split
from scenes.training.training import TrainingRun
from support.durable import new_file

RECONSTRUCTED = {"train": 1500, "test": 300}  # images of a split that are decoded from their codes
LABELS = Labels(
    scenes.BACKGROUND_KINDS, scenes.BACKGROUND_COLOURS, scenes.OBJECT_COLOURS, scenes.SHAPES
)
CELLS = 8  # per side
CELL = scenes.IMAGE_SIZE // CELLS  # pixels


class AttributesRun(TrainingRun):
    """Training of the classifier. Every process computes whole batches: they are small."""

    def __init__(self, work_dir: Path, model_dir: Path, batch_size: int, device: torch.device):
        torch.manual_seed(0)
        model = AttributeClassifier(LABELS).to(device).to(memory_format=torch.channels_last)
        adamw = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01)
        super().__init__(model, batch_size, [adamw], clip=5.0)
        self.classifier = model
        self.train, self.test = (Split.read(work_dir, split) for split in RECONSTRUCTED)
        self.decoded, self.decoded_test = (
            reconstruct(work_dir, split, model_dir / "tokenizer") for split in RECONSTRUCTED
        )

    def loss(self) -> Tensor:
        self.module.train()  # `validate` has left it in the other mode
        pixels, targets = batch(self.train, self.decoded, self.step, self.batch_size)
        targets = Targets(*(values.to(self.device) for values in targets))
        return classifier_loss(self.classifier, pixels.to(self.device), targets)

    def validate(self, batches: int = 8) -> dict[str, float]:
        """Return accuracies on test scenes: as rendered, degraded, and reconstructed."""
        self.module.eval()  # batch norms by their averages
        count = batches * self.batch_size
        clean = torch.from_numpy(self.test.images[:count].copy())
        generator = torch.Generator().manual_seed(0)
        worse = torch.cat([degrade(to_pixels(few), generator) for few in clean.split(50)])
        worse = ((worse + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
        decoded = torch.from_numpy(self.decoded_test[:count].copy())
        figures: dict[str, float] = {}
        for kind, images in (("clean", clean), ("degraded", worse), ("reconstructed", decoded)):
            scores = prompt_accuracy(images, self.test.records[: len(images)], self.classifier)
            figures |= {f"{kind}_{name}": score for name, score in scores.items()}
        return figures

    def export(self, model_dir: Path) -> None:
        self.classifier.save(model_dir / CLASSIFIER)


def classifier_loss(model: AttributeClassifier, pixels: Tensor, targets: "Targets") -> Tensor:
    """Return the loss of images (n, 3, 128, 128) in [-1, 1].

    The cell under an object's centre must show its classes, and the image only the classes present.
    """
    ground, cells = model.cell_logits(pixels.contiguous(memory_format=torch.channels_last))
    kind, ground_colour = ground.split(model.labels.heads()[:2], dim=1)
    loss = F.cross_entropy(kind, targets.classes[:, 0])
    loss = loss + F.cross_entropy(ground_colour, targets.classes[:, 1])
    # weighted, as a mean over 80 classes, of which an image shows a few
    # (n, classes, cells): an image shows a class if any of its cells does
    loss = loss + 20 * F.binary_cross_entropy_with_logits(cells.logsumexp(dim=2), targets.presence)
    return loss - F.logsigmoid(cells[tuple(targets.spots.T)]).mean()


class Targets(NamedTuple):
    """What the classifier should say about n scenes."""

    classes: Tensor  # (n, 2) int64, background kind and colour
    presence: Tensor  # (n, colours + shapes + pairs) float, zeros and ones
    # (m, 3) int64, a row per object and class that it shows: scene, column of `presence`, cell
    spots: Tensor

    @classmethod
    def of(cls, drawn: list[scenes.Scene]) -> "Targets":
        kinds, grounds = LABELS.background_kinds, LABELS.background_colours
        named = (*LABELS.colours, *LABELS.shapes, *LABELS.pairs)
        columns = {name: index for index, name in enumerate(named)}
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


def reconstruct(work_dir: Path, split: str, tokenizer: Path) -> np.ndarray:
    """Return the first images of a split, decoded once, uint8 (images, 128, 128, 3), read-only."""
    path = work_dir / f"reconstructed_{split}.npy"
    if not path.exists():
        codes = np.load(work_dir / f"codes_{split}.npy", mmap_mode="r")[: RECONSTRUCTED[split]]
        images = load_vqgan(tokenizer).decode(torch.from_numpy(codes.astype(np.int64)))
        with new_file(path) as file:
            np.save(file, images.numpy())
    return np.load(path, mmap_mode="r")


def batch(train: Split, decoded: np.ndarray, step: int, size: int) -> tuple[Tensor, Targets]:
    """Return pixels, float (size, 3, 128, 128) in [-1, 1], and targets of a step.

    Both depend only on the step. Up to half of the batch are reconstructions (`decoded`, of the
    first images of `train`), slightly tinted; the others are degraded renders.
    """
    rng, generator = np.random.default_rng((11, step)), torch.Generator().manual_seed(step)
    # sorted, because the images are on disk
    share = min(size // 2, len(decoded))
    rendered_rows = np.sort(rng.choice(len(train.records), size - share, replace=False))
    decoded_rows = np.sort(rng.choice(len(decoded), share, replace=False))
    rendered = to_pixels(torch.from_numpy(train.images[rendered_rows]))
    shown = to_pixels(torch.from_numpy(decoded[decoded_rows]))
    pixels = torch.cat([degrade(rendered, generator), tint(shown, generator)])
    rows = np.concatenate([rendered_rows, decoded_rows])
    drawn = [scenes.sample_scene("train", train.records[row]["index"]) for row in rows]
    return pixels, Targets.of(drawn)


def degrade(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Imitate the errors of a lossy image code, with a different strength for each image.

    Steps: shift by up to 4 px, blur or sharpen, pull towards the means of 4 px blocks, add smooth
    and fine noise, tint. pixels: float (images, 3, height, width) in [-1, 1], sides divisible by 8.
    """
    count, _, height, width = pixels.shape

    def strength(low: float, high: float) -> Tensor:
        return torch.empty(count, 1, 1, 1).uniform_(low, high, generator=generator)

    dx, dy = torch.randint(-4, 5, (2,), generator=generator).tolist()
    padded = F.pad(pixels.contiguous(), (4, 4, 4, 4), mode="replicate")
    pixels = padded[:, :, 4 + dy : 4 + dy + height, 4 + dx : 4 + dx + width]
    blurred = F.avg_pool2d(pixels, 3, stride=1, padding=1, count_include_pad=False)
    pixels = pixels + (blurred - pixels) * strength(-0.4, 1.2)
    blocks = F.interpolate(F.avg_pool2d(pixels, 4), scale_factor=4)
    pixels = pixels + (blocks - pixels) * strength(0, 0.4)
    smooth = torch.randn(count, 3, height // 8, width // 8, generator=generator)
    smooth = F.interpolate(smooth, (height, width), mode="bilinear")
    pixels = pixels + smooth * strength(0, 0.12)
    # one pattern for the whole batch, because drawing is slow
    grain = torch.randn(1, 3, height, width, generator=generator)
    return tint(pixels + grain * strength(0, 0.10), generator)


def tint(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Change contrast and brightness of each channel a little."""
    contrast, brightness = torch.rand(2, len(pixels), 3, 1, 1, generator=generator)
    return (pixels * (0.9 + 0.2 * contrast) + 0.16 * brightness - 0.08).clamp(-1, 1)
