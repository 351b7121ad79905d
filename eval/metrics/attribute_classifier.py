"""A small network that reads the attributes of a scene off its pixels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from eval.metrics.attributes import Attributes, Labels, compare
from models.files.safetensors import open_safetensors
from support.durable import replace_file


class AttributeClassifier(nn.Module):
    """Convolutional network of about 0.35 M weights.

    The background heads read the mean and the maximum of the features. The object heads score each
    of the 8 x 8 cells of 16 pixels; a class is present where the soft maximum over the cells is
    positive.
    """

    def __init__(self, labels: Labels) -> None:
        super().__init__()
        self.labels = labels
        kinds, ground_colours, colours, shapes, pairs = labels.heads()
        self.trunk = nn.Sequential(
            _block(3, 16, size=5, stride=2),  # (images, 16, 64, 64)
            _block(16, 32, size=3, stride=2),
            _block(32, 64, size=3, stride=2),
            _block(64, 96, size=3, stride=1),
            _block(96, 128, size=3, stride=2),  # (images, 128, 8, 8)
        )
        self.background = nn.Linear(256, kinds + ground_colours)
        self.objects = nn.Sequential(
            _block(128, 128, size=3, stride=1),
            nn.Conv2d(128, colours + shapes + pairs, kernel_size=1),
        )
        # At first every class is absent: `forward` adds log 64 = 4.2 by log-sum-exp over 64 cells.
        nn.init.constant_(self.objects[1].bias, -6.0)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> AttributeClassifier:
        """Read a classifier written by `save`; ValueError if the file holds no class names."""
        with open_safetensors(Path(path)) as file:
            metadata = file.metadata() or {}
            if "labels" not in metadata:
                raise ValueError(f"{path}: expected labels in its metadata, got none")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        names = json.loads(metadata["labels"])
        model = cls(Labels(**{name: tuple(values) for name, values in names.items()}))
        model.load_state_dict(weights)
        return model.to(device).eval()

    def save(self, path: str | Path) -> None:
        """Write the weights (matrices as fp16) and the class names as safetensors."""
        state = self.state_dict()
        weights = {k: (v.half() if v.ndim > 1 else v).cpu().contiguous() for k, v in state.items()}
        labels = {"labels": json.dumps(asdict(self.labels))}
        replace_file(Path(path), save(weights, labels))

    def cell_logits(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of background (images, kinds + colours) and cells (images, classes, 64).

        pixels: float (images, 3, 128, 128) in [-1, 1].
        """
        features = self.trunk(pixels)
        return self.background(summary(features)), self.objects(features).flatten(2)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return logits (images, classes) of kind, background colour, colours, shapes and pairs.

        pixels: float (images, 3, 128, 128) in [-1, 1].
        """
        kinds, ground_colours, *present = self.labels.heads()
        ground, cells = self.cell_logits(pixels)
        grounds = ground.split([kinds, ground_colours], dim=1)
        return *grounds, *cells.logsumexp(dim=2).split(present, dim=1)

    @torch.inference_mode()
    def predict(self, images: np.ndarray | Tensor, batch_size: int = 64) -> list[Attributes]:
        """Return the attributes of each of uint8 (images, 128, 128, 3); ValueError for others."""
        batches = torch.as_tensor(images)
        if batches.dtype != torch.uint8 or batches.shape[1:] != (128, 128, 3):
            got = f"{batches.dtype} {tuple(batches.shape)}"
            raise ValueError(f"images: expected uint8 (images, 128, 128, 3), got {got}")
        device = self.background.weight.device
        return [
            attributes
            for batch in batches.split(batch_size)
            for attributes in self.named(self(to_pixels(batch.to(device))))
        ]

    def named(self, logits: Sequence[Tensor]) -> list[Attributes]:
        """Return the attributes of each image, from the logits of `forward`."""
        kinds, grounds = (head.argmax(dim=1).tolist() for head in logits[:2])
        present = [(head > 0).tolist() for head in logits[2:]]
        names = self.labels.colours, self.labels.shapes, self.labels.pairs
        return [
            Attributes(
                self.labels.background_kinds[kind],
                self.labels.background_colours[ground],
                *(frozenset(compress(group, row)) for group, row in zip(names, rows, strict=True)),
            )
            for kind, ground, *rows in zip(kinds, grounds, *present, strict=True)
        ]


def prompt_accuracy(
    images: np.ndarray | Tensor, records: Sequence[Mapping], classifier: AttributeClassifier
) -> dict[str, float]:
    """Return how well uint8 (images, 128, 128, 3) show what caption records say; see `compare`."""
    return compare(classifier.predict(images), list(map(Attributes.from_record, records)))


def summary(features: Tensor) -> Tensor:
    """Return mean and maximum (images, 2 channels) of the trunk's (images, channels, 8, 8)."""
    return torch.cat([features.mean(dim=(2, 3)), features.amax(dim=(2, 3))], dim=1)


def to_pixels(images: Tensor) -> Tensor:
    """Return uint8 (images, height, width, 3) as float32 (images, 3, height, width) in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1.0


def _block(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
