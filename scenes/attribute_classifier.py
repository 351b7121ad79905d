"""The attributes that an image of the tiny domain shows, and that its prompt states.

A small network reads them off the pixels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from models.files.tensors import open_safetensors
from support.durable import replace_file


@dataclass(frozen=True)
class Labels:
    """Names of the classes, in the order of the classifier's outputs."""

    background_kinds: tuple[str, ...]
    background_colours: tuple[str, ...]
    colours: tuple[str, ...]
    shapes: tuple[str, ...]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All (colour, shape) pairs, colour-major."""
        return tuple((colour, shape) for colour in self.colours for shape in self.shapes)

    def heads(self) -> tuple[int, int, int, int, int]:
        """Return the outputs' widths: background kind and colour, colours, shapes, pairs."""
        grounds = len(self.background_kinds), len(self.background_colours)
        return (*grounds, len(self.colours), len(self.shapes), len(self.pairs))


@dataclass(frozen=True)
class Attributes:
    """What one image shows; `pairs` holds (colour, shape) of each object seen."""

    background_kind: str
    background_colour: str
    colours: frozenset[str]
    shapes: frozenset[str]
    pairs: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, kind: str, colour: str, pairs: frozenset[tuple[str, str]]) -> Attributes:
        """Return the attributes of a background and of objects, (colour, shape) each."""
        colours, shapes = (frozenset(pair[side] for pair in pairs) for side in (0, 1))
        return cls(kind, colour, colours, shapes, pairs)

    @classmethod
    def from_record(cls, record: Mapping) -> Attributes:
        """Return what a caption record states: {"background": {...}, "objects": [{...}, ...]}."""
        pairs = frozenset((item["colour"], item["shape"]) for item in record["objects"])
        ground = record["background"]
        return cls.of(ground["kind"], ground["colour"], pairs)

    @classmethod
    def from_prompt(cls, prompt: str, labels: Labels) -> Attributes | None:
        """Return what a caption states.

        None if it names no background, no object, or one by other words than in captions, such as
        "two red squares", "a circle" or "no red circle".
        """
        kinds, grounds = map("|".join, (labels.background_kinds, labels.background_colours))
        colours, shapes = map("|".join, (labels.colours, labels.shapes))
        prompt = prompt.lower()
        ground = re.search(
            rf"\b(?:({kinds}) ({grounds})|({grounds}) ({kinds})) (?:background|backdrop)\b", prompt
        )
        pairs = re.findall(rf"\b({colours}) ({shapes})\b", prompt)
        named = re.findall(rf"\b(?:{shapes})", prompt)  # also plurals, and shapes without a colour
        other = re.search(r"\b(?:no|not|without|or|two|three|four|five|six)\b", prompt)
        if not ground or not pairs or len(pairs) < len(named) or other:
            return None
        return cls.of(ground[1] or ground[4], ground[2] or ground[3], frozenset(pairs))


def hits(seen: Sequence[Attributes], said: Sequence[Attributes]) -> dict[str, np.ndarray]:
    """Return per image how much of what was said is seen, and how much was said.

    The result is (images, 2) by aspect. `background_kind`, `background_colour` and `background`
    (both) count 1 per image; `colour`, `shape` and `object` count the colours, shapes and (colour,
    shape) pairs said; `exact` counts 1 for an image whose background, colours and shapes are those
    said and no others.
    """
    rows = [_hits(a, b) for a, b in zip(seen, said, strict=True)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _hits(seen: Attributes, said: Attributes) -> dict[str, tuple[int, int]]:
    kind = seen.background_kind == said.background_kind
    ground = seen.background_colour == said.background_colour
    things = seen.colours == said.colours and seen.shapes == said.shapes
    return {
        "background_kind": (kind, 1),
        "background_colour": (ground, 1),
        "background": (kind and ground, 1),
        "colour": (len(said.colours & seen.colours), len(said.colours)),
        "shape": (len(said.shapes & seen.shapes), len(said.shapes)),
        "object": (len(said.pairs & seen.pairs), len(said.pairs)),
        "exact": (kind and ground and things, 1),
    }


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
        """Return the attributes of each of uint8 (images, 128, 128, 3)."""
        device = self.background.weight.device
        return [
            attributes
            for batch in torch.as_tensor(images).split(batch_size)
            for attributes in self.named(self(to_pixels(batch.to(device))))
        ]

    def named(self, logits: Sequence[Tensor]) -> list[Attributes]:
        """Return the attributes of each image, from the logits of `forward`."""
        kinds, grounds = (head.argmax(dim=1).tolist() for head in logits[:2])
        present = [(head > 0).tolist() for head in logits[2:]]
        names: Any = self.labels.colours, self.labels.shapes, self.labels.pairs
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
    """Return the shares in [0, 1] of what records say that uint8 (images, 128, 128, 3) show.

    By aspect, over all images; see `hits`.
    """
    said = list(map(Attributes.from_record, records))
    counts = hits(classifier.predict(images), said)  # (images, 2) by aspect
    return {name: float(np.divide(*pairs.sum(axis=0))) for name, pairs in counts.items()}


def summary(features: Tensor) -> Tensor:
    """Return mean and maximum (images, 2 channels) of the trunk's (images, channels, 8, 8)."""
    return torch.cat([features.mean(dim=(2, 3)), features.amax(dim=(2, 3))], dim=1)


def to_pixels(images: Tensor) -> Tensor:
    """Return uint8 (images, height, width, 3) as float32 (images, 3, height, width) in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1.0


def _block(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
