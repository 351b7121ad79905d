"""The attributes that an image of the tiny domain shows, and that its prompt states."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


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
    def from_prompt(cls, prompt: str, labels: Labels) -> Attributes:
        """Return what a caption states; ValueError if it names no background, or no object."""
        kinds, grounds = map("|".join, (labels.background_kinds, labels.background_colours))
        colours, shapes = map("|".join, (labels.colours, labels.shapes))
        prompt = prompt.lower()
        ground = re.search(
            rf"\b(?:({kinds}) ({grounds})|({grounds}) ({kinds})) (?:background|backdrop)\b", prompt
        )
        pairs = frozenset(re.findall(rf"\b({colours}) ({shapes})\b", prompt))
        if not ground or not pairs:
            like = "'a red circle on a plain blue background', in the classifier's words"
            raise ValueError(f"prompt: expected such as {like}, got {prompt!r}")
        return cls.of(ground[1] or ground[4], ground[2] or ground[3], pairs)


def compare(seen: Sequence[Attributes], said: Sequence[Attributes]) -> dict[str, float]:
    """Return the shares in [0, 1] of what was said that is seen, over all images; see `hits`."""
    totals = {name: counts.sum(axis=0) for name, counts in hits(seen, said).items()}
    return {name: float(hit / most) for name, (hit, most) in totals.items()}


def hits(seen: Sequence[Attributes], said: Sequence[Attributes]) -> dict[str, np.ndarray]:
    """Return per image how much of what was said is seen, and how much was said.

    The result is (images, 2) by aspect. `background_kind`, `background_colour` and `background`
    (both) count 1 per image; `colour`, `shape` and `object` count the colours, shapes and (colour,
    shape) pairs said; `exact` counts 1 for an image whose background, colours and shapes are those
    said and no others. ValueError if the lists are empty or differ in length.
    """
    if len(seen) != len(said) or not said:
        got = f"{len(seen)} images and {len(said)} prompts"
        raise ValueError(f"expected equal numbers above 0, got {got}")
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
