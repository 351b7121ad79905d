"""Small classifier that reads a scene's attributes off its pixels, to score images against their prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn


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
        """Widths of the outputs: background kind, background colour, colours, shapes, pairs."""
        single = tuple(
            map(len, (self.background_kinds, self.background_colours, self.colours, self.shapes))
        )
        return (*single, len(self.pairs))


@dataclass(frozen=True)
class Attributes:
    """What one image shows; `pairs` holds (colour, shape) of each object seen."""

    background_kind: str
    background_colour: str
    colours: frozenset[str]
    shapes: frozenset[str]
    pairs: frozenset[tuple[str, str]]

    @classmethod
    def from_record(cls, record: Mapping) -> Attributes:
        """The attributes a caption record states: {"background": {...}, "objects": [{...}, ...]}."""
        pairs = frozenset((item["colour"], item["shape"]) for item in record["objects"])
        return cls(
            background_kind=record["background"]["kind"],
            background_colour=record["background"]["colour"],
            colours=frozenset(colour for colour, _ in pairs),
            shapes=frozenset(shape for _, shape in pairs),
            pairs=pairs,
        )

    @classmethod
    def from_prompt(cls, prompt: str, labels: Labels) -> Attributes:
        """The attributes a caption of the tiny model's kind states: "a red circle ... on a plain blue background".

        Raises:
            ValueError: it names no background, or no object.
        """
        kinds, grounds, colours, shapes = (
            "|".join(names)
            for names in (
                labels.background_kinds,
                labels.background_colours,
                labels.colours,
                labels.shapes,
            )
        )
        prompt = prompt.lower()
        ground = re.search(
            rf"\b(?:({kinds}) ({grounds})|({grounds}) ({kinds})) (?:background|backdrop)\b", prompt
        )
        pairs = frozenset(re.findall(rf"\b({colours}) ({shapes})\b", prompt))
        if not ground or not pairs:
            like = "'a red circle on a plain blue background', in the classifier's words"
            raise ValueError(f"prompt: found {prompt!r}; allowed: such as {like}")
        kind, colour = ground[1] or ground[4], ground[2] or ground[3]
        return cls(
            kind, colour, frozenset(c for c, _ in pairs), frozenset(s for _, s in pairs), pairs
        )


class AttributeClassifier(nn.Module):
    """Convolutional network of about 0.35 M weights.

    Background heads read the mean and the maximum of the features; object heads score each of the 8 x 8 cells
    of 16 px, and a class counts as present when the soft maximum over the cells is positive.
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
        nn.init.constant_(self.objects[1].bias, -6.0)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> AttributeClassifier:
        """Read a classifier written by `save`, ready to predict.

        Raises:
            ValueError: if the file holds no class names.
        """
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if "labels" not in metadata:
                raise ValueError(f"{path}: not an attribute classifier, its metadata lack 'labels'")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        labels = Labels(
            **{name: tuple(values) for name, values in json.loads(metadata["labels"]).items()}
        )
        model = cls(labels)
        model.load_state_dict(weights)
        return model.to(device).eval()

    def save(self, path: str | Path) -> None:
        """Write the weights (matrices as fp16) and the class names as safetensors."""
        state = self.state_dict()
        weights = {k: (v.half() if v.ndim > 1 else v).cpu().contiguous() for k, v in state.items()}
        save_file(weights, str(path), metadata={"labels": json.dumps(asdict(self.labels))})

    def cell_logits(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the background, (images, kinds + colours), and of the cells, (images, classes, 64).

        Args:
            pixels: float (images, 3, 128, 128) in [-1, 1].
        """
        features = self.trunk(pixels)
        summary = torch.cat([features.mean(dim=(2, 3)), features.amax(dim=(2, 3))], dim=1)
        return self.background(summary), self.objects(features).flatten(2)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Logits of (kind, background colour, colours, shapes, pairs), (images, classes) each.

        Args:
            pixels: float (images, 3, 128, 128) in [-1, 1].
        """
        kinds, ground_colours, *present = self.labels.heads()
        ground, cells = self.cell_logits(pixels)
        return *ground.split([kinds, ground_colours], dim=1), *cells.logsumexp(dim=2).split(
            present, dim=1
        )

    @torch.inference_mode()
    def predict(self, images: np.ndarray | Tensor, batch_size: int = 64) -> list[Attributes]:
        """Attributes of each image.

        Args:
            images: uint8 (images, 128, 128, 3).
            batch_size: images per forward pass.

        Raises:
            ValueError: if the images have another shape or type.
        """
        batches = torch.as_tensor(images)
        if batches.dtype != torch.uint8 or batches.shape[1:] != (128, 128, 3):
            found = f"{batches.dtype} {tuple(batches.shape)}"
            raise ValueError(f"images: found {found}, allowed is uint8 (images, 128, 128, 3)")
        device = self.background.weight.device
        return [
            attributes
            for batch in batches.split(batch_size)
            for attributes in self.named(self(to_pixels(batch.to(device))))
        ]

    def named(self, logits: Sequence[Tensor]) -> list[Attributes]:
        """Attributes of each image, from what `forward` gives."""
        kinds, grounds = (head.argmax(dim=1).tolist() for head in logits[:2])
        present = [(head > 0).tolist() for head in logits[2:]]
        names = self.labels.colours, self.labels.shapes, self.labels.pairs
        return [
            Attributes(
                self.labels.background_kinds[kind],
                self.labels.background_colours[ground],
                *(
                    frozenset(n for n, there in zip(group, row, strict=True) if there)
                    for group, row in zip(names, rows, strict=True)
                ),
            )
            for kind, ground, *rows in zip(kinds, grounds, *present, strict=True)
        ]


def prompt_accuracy(
    images: np.ndarray | Tensor, records: Sequence[Mapping], classifier: AttributeClassifier
) -> dict[str, float]:
    """How well the images show what their prompts say; see `compare`.

    Args:
        images: uint8 (images, 128, 128, 3).
        records: one caption record per image, as `Attributes.from_record` reads it.
        classifier: a trained classifier.
    """
    return compare(
        classifier.predict(images), [Attributes.from_record(record) for record in records]
    )


def compare(seen: Sequence[Attributes], said: Sequence[Attributes]) -> dict[str, float]:
    """Shares in [0, 1] of what was said that is seen, over all images; see `hits`.

    Raises:
        ValueError: if the lists are empty or differ in length.
    """
    return {
        name: float(counts[:, 0].sum() / counts[:, 1].sum())
        for name, counts in hits(seen, said).items()
    }


def hits(seen: Sequence[Attributes], said: Sequence[Attributes]) -> dict[str, np.ndarray]:
    """Per image how much of what was said is seen, and how much was said: (images, 2) by aspect.

    `background_kind`, `background_colour`, `background` (both) count 1 per image; `colour`, `shape` and `object` the
    colours, shapes and (colour, shape) pairs said; `exact` is met by an image whose background, colours and shapes
    are those said and no others.

    Raises:
        ValueError: if the lists are empty or differ in length.
    """
    if len(seen) != len(said) or not said:
        raise ValueError(
            f"images, records: found {len(seen)} and {len(said)}, allowed are equal, positive numbers"
        )
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


def to_pixels(images: Tensor) -> Tensor:
    """uint8 (images, height, width, 3) to float32 (images, 3, height, width) in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1.0


def _block(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
