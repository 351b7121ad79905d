"""Render scenes with their captions:
`python -m scripts.tiny.render --split train --count 60000`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from scenes.captions import caption
from scenes.painting import render_scene
from scenes.scene import IMAGE_SIZE, sample_scene
from support.script import run_script


def render(
    *, work_dir: str = "work/tiny", split: str = "train", count: int = 60000, chunk: int = 500
) -> None:
    """Write `images_{split}.npy`, uint8 (count, 128, 128, 3), and `captions_{split}.jsonl`.

    A caption is written only after its image, so the whole lines of captions count the finished
    scenes, and the same call continues after them.

    Args:
        work_dir: folder of the intermediate files, created if missing.
        split: train, validation or test.
        count: number of scenes.
        chunk: scenes between two writes to disk.

    Raises:
        ValueError: the folder holds another number of images, or a number is not positive.
    """
    if count < 1 or chunk < 1:
        raise ValueError(f"--count, --chunk: found {count}, {chunk}, allowed: whole numbers from 1")
    sample_scene(split, 0)
    folder = Path(work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    captions_path = folder / f"captions_{split}.jsonl"
    images = _open_images(folder / f"images_{split}.npy", count)
    started, first = time.perf_counter(), _whole_lines(captions_path)
    for start in range(first, count, chunk):
        stop = min(start + chunk, count)
        lines = []
        for index in range(start, stop):
            scene = sample_scene(split, index)
            images[index] = render_scene(scene)
            lines.append(
                json.dumps({"index": index, "caption": caption(scene, index), **scene.attributes()})
            )
        images.flush()
        with captions_path.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        rate = (stop - first) / (time.perf_counter() - started)
        _log(event="render", split=split, done=stop, count=count, images_per_second=round(rate, 1))
    _log(event="done", split=split, count=count)


def _open_images(path: Path, count: int) -> np.memmap:
    shape = (count, IMAGE_SIZE, IMAGE_SIZE, 3)
    if not path.exists():
        return np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    images = np.lib.format.open_memmap(path, mode="r+")
    if images.shape != shape:
        raise ValueError(
            f"--count: found {count}, but {path} holds {len(images)} images; "
            "delete the file to start again"
        )
    return images


def _whole_lines(path: Path) -> int:
    """Return the number of whole lines of the file; a partial last line is cut off."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    return content.count(b"\n")


def _log(**fields: object) -> None:
    json.dump(fields, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run_script(render)
