"""Rendered scenes as image files: the real images of the tiny domain."""

from pathlib import Path

from PIL import Image

from scenes.painting import render_scene
from scenes.scene import sample_scene
from support.durable import new_file


def rendered_scenes(folder: Path, count: int = 1000) -> Path:
    """Return `folder`/tiny_reference: the first scenes of the test split as PNG of 128 x 128.

    Only pictures that are not there yet are rendered.
    """
    folder = folder / "tiny_reference"
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        path = folder / f"{index:05d}.png"
        if not path.exists():
            with new_file(path) as file:
                Image.fromarray(render_scene(sample_scene("test", index))).save(file, "PNG")
    return folder
