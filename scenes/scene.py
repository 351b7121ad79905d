"""Procedural scenes: one to three coloured shapes on a coloured, textured background.

A scene is a small value, drawn from `(split, index)` alone. `painting.render_scene` turns it into
pixels and `captions.caption` into words. Lengths and positions are in pixels of an image of 128 x
128.
"""

from dataclasses import asdict, dataclass

import numpy as np

IMAGE_SIZE = 128

BACKGROUND_KINDS = ("plain", "gradient", "striped", "checkered", "noisy", "grassy", "cloudy")
BACKGROUND_COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "cyan", "grey")
OBJECT_COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "white", "black")
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "diamond", "heart")
SIZES = ("small", "large")
FILLS = ("solid", "striped", "dotted")

# Another number would make other scenes: the shipped model was trained on those of "train".
_SPLIT_SEEDS = {"train": 101, "validation": 102, "test": 103}
_FILL_ODDS = (0.76, 0.14, 0.10)  # of FILLS
_COUNT_ODDS = (0.45, 0.45, 0.10)  # of one, two and three objects
_DIAMETERS = {"small": (26, 31), "large": (50, 56)}  # pixels, the second one excluded
_MARGIN = 4  # pixels between an object and the border


@dataclass(frozen=True)
class Background:
    """The background of a scene."""

    kind: str
    colour: str


@dataclass(frozen=True)
class SceneObject:
    """An object of a scene."""

    shape: str
    colour: str
    size: str
    fill: str
    x: int  # of its centre, to the right
    y: int  # of its centre, down
    diameter: int  # side of its bounding box


@dataclass(frozen=True)
class Scene:
    """A picture before painting; `texture_seed` fixes the random details of the background."""

    background: Background
    objects: tuple[SceneObject, ...]
    texture_seed: int

    def relation(self) -> str | None:
        """Return where the first of two objects lies, seen from the second; None unless two."""
        if len(self.objects) != 2:
            return None
        first, second = self.objects
        dx, dy = first.x - second.x, first.y - second.y
        if abs(dx) >= abs(dy):
            return "left of" if dx < 0 else "right of"
        return "above" if dy < 0 else "below"

    def position(self) -> str | None:
        """Return the place of a lone object, such as "bottom left"; None if there are several."""
        if len(self.objects) != 1:
            return None
        only = self.objects[0]
        words = _third(only.y, ("top", "", "bottom")), _third(only.x, ("left", "", "right"))
        return " ".join(filter(None, words)) or "centre"

    def attributes(self) -> dict:
        """Return the facts that a caption can name, as plain JSON values."""
        names = ("shape", "colour", "size", "fill")
        objects = [{name: getattr(item, name) for name in names} for item in self.objects]
        return {"background": asdict(self.background), "objects": objects}


def sample_scene(split: str, index: int) -> Scene:
    """Draw scene number `index` of `split`, always the same; ValueError if there is none."""
    if split not in _SPLIT_SEEDS:
        names = ", ".join(sorted(_SPLIT_SEEDS))
        raise ValueError(f"--split: expected one of {names}, got {split!r}")
    rng = np.random.default_rng((_SPLIT_SEEDS[split], index))
    background = Background(pick(rng, BACKGROUND_KINDS), pick(rng, BACKGROUND_COLOURS))
    count = 1 + int(rng.choice(3, p=_COUNT_ODDS))
    # an object of the background's colour would be invisible
    allowed = [name for name in OBJECT_COLOURS if name != background.colour]
    colours = [allowed[i] for i in rng.permutation(len(allowed))[:count]]
    # three large objects would not fit side by side
    sizes = [pick(rng, SIZES) if count < 3 else "small" for _ in range(count)]
    diameters = [int(rng.integers(*_DIAMETERS[size])) for size in sizes]
    centres = _LAYOUTS[count](rng, diameters)
    objects = []
    for colour, size, diameter, (x, y) in zip(colours, sizes, diameters, centres, strict=True):
        shape, fill = pick(rng, SHAPES), FILLS[rng.choice(len(FILLS), p=_FILL_ODDS)]
        objects.append(SceneObject(shape, colour, size, fill, int(x), int(y), diameter))
    return Scene(background, tuple(objects), texture_seed=int(rng.integers(2**62)))


def pick(rng: np.random.Generator, names: tuple[str, ...]) -> str:
    """Choose one of some names."""
    return names[rng.integers(len(names))]


def _third(coordinate: int, words: tuple[str, str, str]) -> str:
    """Return the word of the third that the coordinate is in; the outer thirds are 52 pixels."""
    return words[0] if coordinate < 52 else words[2] if coordinate > IMAGE_SIZE - 52 else words[1]


def _inside(values: np.ndarray, diameters: list[int]) -> np.ndarray:
    """Return centres (objects, 2), clipped so that every object lies inside the image."""
    reach = np.asarray(diameters)[:, None] / 2 + _MARGIN
    return np.clip(values, reach, IMAGE_SIZE - reach).round()


def _one(rng: np.random.Generator, diameters: list[int]) -> np.ndarray:
    """Place a lone object: about half of the time in the centre, else in one of nine cells."""
    cell = np.zeros(2) if rng.random() < 0.4 else rng.integers(-1, 2, size=2)
    return _inside((64 + 32 * cell + rng.uniform(-5, 5, size=2))[None], diameters)


def _two(rng: np.random.Generator, diameters: list[int]) -> np.ndarray:
    """Place two objects clearly apart on one axis, side by side or one above the other."""
    axis = int(rng.integers(2))
    centres = np.empty((2, 2))
    centres[:, axis] = 64 + np.array([-32, 32]) + rng.uniform(-3, 3, size=2)
    centres[:, 1 - axis] = 64 + rng.uniform(-18, 18) + rng.uniform(-6, 6, size=2)
    if rng.random() < 0.5:
        centres = centres[::-1]
    return _inside(centres, diameters)


def _three(rng: np.random.Generator, diameters: list[int]) -> np.ndarray:
    """Place three small objects in a row, a column or a triangle, in reading order."""
    spots = np.asarray(_TRIPLES[int(rng.integers(len(_TRIPLES)))], dtype=float)
    spots = spots + rng.uniform(-8, 8, size=2) + rng.uniform(-3, 3, size=(3, 2))
    return _inside(spots, diameters)


_TRIPLES = (
    ((24, 64), (64, 64), (104, 64)),
    ((64, 24), (64, 64), (64, 104)),
    ((64, 34), (34, 92), (94, 92)),
    ((34, 36), (94, 36), (64, 94)),
)
_LAYOUTS = {1: _one, 2: _two, 3: _three}
