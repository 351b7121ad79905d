"""Paint scenes with numpy and PIL; the masks of shapes are supersampled once and cached."""

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from scenes.scene import IMAGE_SIZE, Scene, SceneObject, sample_scene
from support.durable import new_file

RGB = {
    "red": (214, 40, 40),
    "green": (46, 160, 67),
    "blue": (40, 80, 210),
    "yellow": (245, 215, 40),
    "orange": (245, 130, 25),
    "purple": (135, 55, 175),
    "cyan": (50, 195, 205),
    "grey": (125, 125, 125),
    "white": (248, 248, 248),
    "black": (22, 22, 22),
}
_JITTER = 7  # of 256 levels, by which a colour varies from scene to scene
_SUPERSAMPLING = 4  # ImageDraw does not smooth edges, so masks are drawn larger and reduced
_OUTLINE = 1.5  # pixels
_WHITE, _BLACK = np.full(3, 255.0, dtype=np.float32), np.zeros(3, dtype=np.float32)
_Y, _X = np.mgrid[0:IMAGE_SIZE, 0:IMAGE_SIZE].astype(np.float32)


def render_scene(scene: Scene) -> np.ndarray:
    """Return the picture uint8 (128, 128, 3), a pure function of the scene."""
    rng = np.random.default_rng(scene.texture_seed)
    tint = _jittered(scene.background.colour, rng)
    low, high, weight = _BACKGROUNDS[scene.background.kind](tint, rng)
    canvas = low + (high - low) * weight[:, :, None]  # (128, 128, 3)
    for item in scene.objects:
        _paint_object(canvas, item, rng)
    return np.clip(canvas + 0.5, 0, 255).astype(np.uint8)


def rendered_scenes(folder: Path, count: int = 1000) -> Path:
    """Return `folder`/tiny_reference: the first scenes of the test split as PNG, made once."""
    folder = folder / "tiny_reference"
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        path = folder / f"{index:05d}.png"
        if not path.exists():
            with new_file(path) as file:
                Image.fromarray(render_scene(sample_scene("test", index))).save(file, "PNG")
    return folder


def _jittered(colour: str, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(RGB[colour], dtype=np.float32) + rng.integers(-_JITTER, _JITTER + 1, size=3)


def _mix(colour: np.ndarray, other: np.ndarray, share: float) -> np.ndarray:
    """Return the colour with `share` of the other one blended in."""
    return (colour + (other - colour) * share).astype(np.float32)


def _paint_object(canvas: np.ndarray, item: SceneObject, rng: np.random.Generator) -> None:
    """Blend one object into `canvas`, float (128, 128, 3), in place."""
    whole, inner = shape_masks(item.shape, item.diameter)
    colour = _jittered(item.colour, rng)
    # a darker outline, which black does not have
    edge = _mix(colour, _WHITE, 0.35) if item.colour == "black" else _mix(colour, _BLACK, 0.5)
    paint = np.broadcast_to(colour, (*whole.shape, 3))
    if item.fill != "solid":
        white = item.colour == "white"
        second = _mix(colour, _BLACK, 0.45) if white else _mix(colour, _WHITE, 0.62)
        pattern = fill_pattern(item.fill, item.size, whole.shape[0])[:, :, None]
        paint = colour + (second - colour) * pattern
    paint = edge + (paint - edge) * inner[:, :, None]
    top, left = item.y - whole.shape[0] // 2, item.x - whole.shape[1] // 2
    spot = canvas[top : top + whole.shape[0], left : left + whole.shape[1]]
    spot += (paint - spot) * whole[:, :, None]


@lru_cache(maxsize=1024)
def shape_masks(shape: str, diameter: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 (side, side) in [0, 1]: coverage of the shape, and of it without outline."""
    side = diameter + diameter % 2 + 2  # even, so that the centre is between two pixels
    big = Image.new("L", (side * _SUPERSAMPLING,) * 2, 0)
    radius, middle = diameter * _SUPERSAMPLING / 2, side * _SUPERSAMPLING / 2
    for method, points, value in _SHAPES[shape]:
        corners = [(middle + radius * x, middle + radius * y) for x, y in points]
        getattr(ImageDraw.Draw(big), method)(corners, fill=value)
    width = 2 * round(_OUTLINE * _SUPERSAMPLING) + 1
    # the minimum over a window shrinks the shape by half of the window
    inner = big.filter(ImageFilter.MinFilter(width))
    whole, without = (
        np.asarray(mask.reduce(_SUPERSAMPLING), np.float32) / 255 for mask in (big, inner)
    )
    return whole, without


@lru_cache(maxsize=64)
def fill_pattern(fill: str, size: str, side: int) -> np.ndarray:
    """Return the weight of the second tone in a filled object, float (side, side) in [0, 1]."""
    period = 12.0 if size == "large" else 9.0
    y, x = _Y[:side, :side] - side / 2, _X[:side, :side] - side / 2
    if fill == "striped":
        wave = np.abs((x + y) / math.sqrt(2) % period - period / 2) - period / 4
        return np.clip(0.5 - wave, 0, 1)
    dx, dy = (x + period / 2) % period - period / 2, (y + period / 2) % period - period / 2
    return np.clip(0.5 + period * 0.3 - np.hypot(dx, dy), 0, 1)


def _star() -> list[tuple[float, float]]:
    turns = [(i / 10, 0.45 if i % 2 else 1.0) for i in range(10)]
    return [(r * math.sin(2 * math.pi * t), -r * math.cos(2 * math.pi * t)) for t, r in turns]


def _heart() -> list[tuple[float, float]]:
    angles = np.linspace(0, 2 * math.pi, 90)
    x = 16 * np.sin(angles) ** 3
    waves = zip((13, -5, -2, -1), (1, 2, 3, 4), strict=True)
    y = -np.sum([height * np.cos(number * angles) for height, number in waves], axis=0) - 2.5
    return list(zip(x / 16, y / 16, strict=True))


# Of each shape what is drawn, one over the other: the method of ImageDraw, the points in radii from
# the centre (x to the right, y down), and the value that fills it.
_SHAPES: dict[str, list[tuple[str, list[tuple[float, float]], int]]] = {
    "circle": [("ellipse", [(-1, -1), (1, 1)], 255)],
    "square": [("rectangle", [(-0.88, -0.88), (0.88, 0.88)], 255)],
    "triangle": [("polygon", [(0, -1), (1, 0.85), (-1, 0.85)], 255)],
    "star": [("polygon", _star(), 255)],
    "cross": [
        ("rectangle", [(-0.34, -1), (0.34, 1)], 255),
        ("rectangle", [(-1, -0.34), (1, 0.34)], 255),
    ],
    "ring": [
        ("ellipse", [(-1, -1), (1, 1)], 255),
        ("ellipse", [(-0.48, -0.48), (0.48, 0.48)], 0),
    ],
    "diamond": [("polygon", [(0, -1), (0.8, 0), (0, 1), (-0.8, 0)], 255)],
    "heart": [("polygon", _heart(), 255)],
}


# First colour (3,), second colour (3,), weight of the second (128, 128).
Texture = tuple[np.ndarray, np.ndarray, np.ndarray]


def _plain(tint: np.ndarray, rng: np.random.Generator) -> Texture:
    return tint, tint, np.zeros_like(_X)


def _gradient(tint: np.ndarray, rng: np.random.Generator) -> Texture:
    """Run from the colour on one side or corner to a light tint on the other."""
    angle = rng.integers(8) * math.pi / 4
    ramp = (_X - 63.5) * math.cos(angle) + (_Y - 63.5) * math.sin(angle)
    return tint, _mix(tint, _WHITE, 0.72), ((ramp / np.abs(ramp).max() + 1) / 2).astype(np.float32)


def _striped(tint: np.ndarray, rng: np.random.Generator) -> Texture:
    """Make horizontal, vertical or diagonal bands of two tones, 8 to 16 pixels wide."""
    width = float(rng.choice((8, 12, 16)))
    along = (_X, _Y, (_X + _Y) / math.sqrt(2), (_X - _Y) / math.sqrt(2))[rng.integers(4)]
    shift = float(rng.integers(2)) * width
    wave = np.abs((along + shift + 0.5) % (2 * width) - width) - width / 2
    return tint, _mix(tint, _WHITE, 0.5), np.clip(wave + 0.5, 0, 1)


def _checkered(tint: np.ndarray, rng: np.random.Generator) -> Texture:
    phase = rng.integers(2)
    return tint, _mix(tint, _WHITE, 0.5), ((_X // 16 + _Y // 16 + phase) % 2).astype(np.float32)


def _noisy(tint: np.ndarray, rng: np.random.Generator) -> Texture:
    """Make grain of about 4 pixels."""
    grain = _enlarged(rng.random((32, 32), dtype=np.float32), Image.Resampling.BILINEAR)
    return _mix(tint, _BLACK, 0.42), _mix(tint, _WHITE, 0.42), grain


def _grassy(tint: np.ndarray, rng: np.random.Generator) -> Texture:
    """Draw short slanted blades in several tones, at double size."""
    sheet = Image.new("L", (2 * IMAGE_SIZE,) * 2, 110)
    draw = ImageDraw.Draw(sheet)
    count = 260
    roots = rng.uniform(-10, 2 * IMAGE_SIZE + 20, size=(count, 2))
    tips = roots + np.stack([rng.uniform(-14, 14, count), -rng.uniform(24, 44, count)], axis=1)
    tones = rng.integers(0, 256, count).tolist()
    for ends, tone in zip(np.concatenate([roots, tips], axis=1).tolist(), tones, strict=True):
        draw.line(ends, fill=tone, width=4)
    weight = np.asarray(sheet.reduce(2), dtype=np.float32) / 255
    return _mix(tint, _BLACK, 0.5), _mix(tint, _WHITE, 0.4), weight


def _cloudy(tint: np.ndarray, rng: np.random.Generator) -> Texture:
    """Lay soft light blobs over the colour."""
    coarse = _enlarged(rng.random((5, 5), dtype=np.float32), Image.Resampling.BICUBIC)
    fine = _enlarged(rng.random((10, 10), dtype=np.float32), Image.Resampling.BICUBIC)
    blend = 0.7 * coarse + 0.3 * fine
    return tint, _mix(tint, _WHITE, 0.8), np.clip((blend - 0.40) * 2.7, 0, 1)


def _enlarged(values: np.ndarray, how: Image.Resampling) -> np.ndarray:
    """Return float (rows, columns) resized to (128, 128)."""
    return np.asarray(Image.fromarray(values).resize((IMAGE_SIZE, IMAGE_SIZE), how))


_BACKGROUNDS = {
    "plain": _plain,
    "gradient": _gradient,
    "striped": _striped,
    "checkered": _checkered,
    "noisy": _noisy,
    "grassy": _grassy,
    "cloudy": _cloudy,
}
