"""Rendered scenes as image files: the real images of the tiny domain.

`python -m scenes.pictures --count 8000 --output_dir work/tiny/scenes` writes training scenes with
their captions, as `main.py extract_tokens --data_dir` reads them.
"""

from pathlib import Path

from PIL import Image

from scenes.captions import caption
from scenes.painting import render_scene
from scenes.scene import sample_scene
from support.durable import new_file
from support.script import run_script


def rendered_scenes(folder: Path, count: int = 1000) -> Path:
    """Return `folder`/tiny_reference, with the first scenes of the test split."""
    return write_pictures(folder / "tiny_reference", "test", count)


def write_pictures(folder: Path, split: str, count: int, captions: bool = False) -> Path:
    """Render the first scenes of a split that are missing as PNG of 128 x 128; return the folder.

    A caption, where captions are wanted, is a .txt with the picture's name, written before it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        path = folder / f"{index:05d}.png"
        if path.exists():
            continue
        scene = sample_scene(split, index)
        # before the picture, since a picture that is there counts as done
        if captions:
            path.with_suffix(".txt").write_text(caption(scene, index) + "\n", encoding="utf-8")
        with new_file(path) as file:
            Image.fromarray(render_scene(scene)).save(file, "PNG")
    return folder


def pictures(*, output_dir: str, split: str = "train", count: int = 8000) -> None:
    """Write the first scenes of a split with their captions.

    Args:
        output_dir: folder, made if missing; pictures that are there stay.
        split: train, validation or test.
        count: how many.
    """
    if count < 1:
        raise ValueError(f"--count: expected a number from 1, got {count}")
    write_pictures(Path(output_dir), split, count, captions=True)


if __name__ == "__main__":
    run_script(pictures)
