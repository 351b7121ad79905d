"""Train the attribute classifier on rendered scenes: `python -m scripts.tiny.train_attributes`.

Half of the images are reconstructions by the VQGAN (run it after `encode`), the other half are
renders that are blurred, shifted, tinted and made noisy at random, so that the classifier can read
generated images.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.schema import CLASSIFIER
from eval.metrics.attribute_classifier import AttributeClassifier, prompt_accuracy, to_pixels
from eval.metrics.attributes import Labels
from models.codecs.vqgan import load_vqgan
from scenes import scene as scenes
from scripts.tiny.images import Split
from scripts.tiny.training import TrainingRun, torch_device, train_for
from support.script import run_script

_TEST_RECONSTRUCTIONS = 300
LABELS = Labels(
    scenes.BACKGROUND_KINDS, scenes.BACKGROUND_COLOURS, scenes.OBJECT_COLOURS, scenes.SHAPES
)
CELLS = 8  # per side
CELL = scenes.IMAGE_SIZE // CELLS  # pixels
_IMAGE_BYTES = scenes.IMAGE_SIZE * scenes.IMAGE_SIZE * 3


class AttributesRun(TrainingRun):
    """Training of the classifier. Every process computes whole batches: they are small."""

    def __init__(
        self,
        work_dir: Path,
        vqgan: str,
        batch_size: int,
        reconstructed: int,
        device: torch.device,
    ):
        torch.manual_seed(0)
        model = AttributeClassifier(LABELS).to(device, memory_format=torch.channels_last)
        adamw = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01)
        super().__init__(model, batch_size, [adamw], clip=5.0)
        self.train, self.test = (Split.read(work_dir, split) for split in ("train", "test"))
        self.decoded, self.decoded_test = (
            reconstruct(work_dir, split, vqgan, count) if reconstructed else np.empty((0,))
            for split, count in (("train", reconstructed), ("test", _TEST_RECONSTRUCTIONS))
        )

    def loss(self) -> Tensor:
        self.module.train()
        pixels, targets = batch(self.train, self.decoded, self.step, self.batch_size)
        return classifier_loss(self.module, pixels.to(self.device), targets.to(self.device))

    def validate(self, batches: int = 8) -> dict[str, float]:
        """Return accuracies on test scenes: as rendered, degraded, and reconstructed."""
        self.module.eval()  # batch norms by their averages
        count = batches * self.batch_size
        clean = torch.from_numpy(self.test.images[:count].copy())
        generator = torch.Generator().manual_seed(0)
        worse = torch.cat([degrade(to_pixels(few), generator) for few in clean.split(50)])
        worse = ((worse + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
        images = {"clean": clean, "degraded": worse}
        if len(self.decoded_test):
            images["reconstructed"] = torch.from_numpy(self.decoded_test[:count].copy())
        return {
            f"{kind}_{name}": score
            for kind, shown in images.items()
            for name, score in prompt_accuracy(
                shown, self.test.records[: len(shown)], self.module
            ).items()
        }

    def start_from(self, folder: Path) -> None:
        """Do nothing: the classifier always begins with random weights."""

    def export(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.module.save(folder / CLASSIFIER)


def train(
    *,
    work_dir: str = "work/tiny",
    model_dir: str = "ckpts/tiny",
    minutes: float = 5.0,
    batch_size: int = 32,
    lr: float = 2e-3,
    reconstructed: int = 1500,
) -> None:
    """Train for `minutes` of wall clock in all, earlier calls included; then write the classifier.

    Args:
        work_dir: folder with the rendered train and test splits and their codes, and with the
            checkpoint.
        model_dir: folder with the image tokenizer, which also receives the classifier.
        minutes: budget; 2,400 steps take about five minutes on one CPU core.
        batch_size: images per step.
        lr: highest learning rate.
        reconstructed: images of the train split to decode from their codes; 0 trains on renders
            alone.
    """
    vqgan = str(Path(model_dir) / "tokenizer")
    run = AttributesRun(Path(work_dir), vqgan, batch_size, reconstructed, torch_device())
    train_for(minutes, run, Path(work_dir) / "attributes.pt", None, lr)
    if run.crew.rank == 0:
        run.export(Path(model_dir))


def classifier_loss(model: AttributeClassifier, pixels: Tensor, targets: Targets) -> Tensor:
    """Return the loss of images (n, 3, 128, 128) in [-1, 1].

    The cell under an object's centre must show its classes, and the image only the classes present.
    """
    ground, cells = model.cell_logits(pixels.contiguous(memory_format=torch.channels_last))
    kind, ground_colour = ground.split(model.labels.heads()[:2], dim=1)
    loss = F.cross_entropy(kind, targets.classes[:, 0]) + F.cross_entropy(
        ground_colour, targets.classes[:, 1]
    )
    loss = loss + 20 * F.binary_cross_entropy_with_logits(cells.logsumexp(dim=2), targets.presence)
    return loss - F.logsigmoid(cells[tuple(targets.spots.T)]).mean()


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

    def to(self, device: torch.device) -> Targets:
        """Return the targets on a device."""
        return Targets(*(part.to(device) for part in (self.classes, self.presence, self.spots)))

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
    run_script(train)
