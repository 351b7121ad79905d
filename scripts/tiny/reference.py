"""Rendered scenes of the test split as image files: the real images of the tiny domain, for `main.py evaluate`."""

import os
from pathlib import Path

from PIL import Image

from scripts.tiny.painting import render_scene
from scripts.tiny.scenes import sample_scene


def rendered_scenes(folder: Path, count: int = 1000) -> Path:
    """The folder `tiny_reference` below `folder` with the first scenes, 128 x 128 PNG; renders the missing ones."""
    place = folder / "tiny_reference"
    place.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        path = place / f"{index:05d}.png"
        if not path.exists():
            hidden = path.with_suffix(f".{os.getpid()}.tmp")
            Image.fromarray(render_scene(sample_scene("test", index))).save(hidden, "PNG")
            os.replace(hidden, path)
    return place
