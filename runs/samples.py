"""Sample captions and pictures, for commands that are given none: those of the included world.

`scenes/` stands above this folder, because it also trains a model on its scenes; so its functions
are found by name.
"""

from pathlib import Path

import numpy as np

from configs.rules import loaded


def sample_captions(split: str, count: int) -> list[str]:
    """Return the captions of the first scenes of a split, "train" or "test"."""
    return loaded("scenes.captions:scene_captions")(split, count)


def sample_pictures(split: str, indices: list[int]) -> list[np.ndarray]:
    """Return the pictures of these scenes of a split, each uint8 (128, 128, 3)."""
    render = loaded("scenes.painting:render_scene")
    sample = loaded("scenes.scene:sample_scene")
    return [render(sample(split, index)) for index in indices]


def sample_reference(folder: Path) -> Path:
    """Return a subfolder with 1,000 pictures of the test split as PNG, made once."""
    return loaded("scenes.painting:rendered_scenes")(folder)
