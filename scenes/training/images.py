"""Training images with captions: rendered scenes, or crops of a user's pictures.

`python -m scenes.training.images --split train --count 60000` renders;
`python -m scenes.training.images --split train --count 27000 --pictures DIR` crops.
"""

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from PIL import Image
from tqdm import trange

from configs.fields import refuse
from runs.captioned_images import IMAGE_ENDINGS, Fault, captioned_images
from scenes.captions import caption
from scenes.painting import render_scene
from scenes.scene import IMAGE_SIZE, Scene, sample_scene
from support.durable import encode_json, encode_lines, replace_file
from support.json_files import read_object
from support.pictures import as_rgb
from support.script import run_script

SMALLEST_CROP = 0.35  # of the picture's shorter side


@dataclass(frozen=True)
class Split:
    """Images, uint8 (n, 128, 128, 3), and one caption record per image."""

    images: np.ndarray
    records: Sequence[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path, name: str) -> "Split":
        """Open `images_{name}.npy`, which stays on disk, and `captions_{name}.jsonl`."""
        path = folder / f"images_{name}.npy"
        if not path.exists():
            raise ValueError(
                f"{path}: not found; make it with scenes.training.images --split {name}"
            )
        return cls(np.load(path, mmap_mode="r"), read_captions(folder, name))


def read_captions(folder: Path, split: str) -> list[dict[str, Any]]:
    """Read the caption records of a split."""
    with (folder / f"captions_{split}.jsonl").open(encoding="utf-8") as file:
        return [json.loads(text) for text in file]


def scene_of(split: str, record: dict[str, Any]) -> Scene | None:
    """Return the scene of a caption record; None for a crop of a picture."""
    return sample_scene(split, record["index"]) if "background" in record else None


def draw_scene(split: str, index: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return an image of a scene, uint8 (128, 128, 3), and its caption record."""
    scene = sample_scene(split, index)
    record = {"index": index, "caption": caption(scene, index), **scene.attributes()}
    return render_scene(scene), record


Picture = tuple[str, str, bytes]  # id, caption and content of its file


def pictures_of(folder: Path, split: str, holdout: int) -> list[Picture]:
    """Return the pictures of a split; `holdout` of them are used for validation only."""
    pictures = read_pictures(folder)
    if split not in ("train", "validation"):
        raise ValueError(f"--split: with --pictures expected train or validation, got {split}")
    if not 0 < holdout < len(pictures):
        raise ValueError(
            f"--holdout: expected 1 to {len(pictures) - 1}, got {holdout}: {folder} has "
            f"{len(pictures)} pictures"
        )
    # a folder's order is often its order by subject, so the first ones would be of one kind
    order = np.random.default_rng(0).permutation(len(pictures))
    chosen = order[:holdout] if split == "validation" else order[holdout:]
    return [pictures[number] for number in sorted(chosen)]


def draw_crop(pictures: Sequence[Picture], index: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return a square crop of a picture, uint8 (128, 128, 3), and its caption record."""
    turn, number = divmod(index, len(pictures))
    id, text, content = pictures[number]
    try:
        picture = as_rgb(Image.open(io.BytesIO(content)))
    except OSError as error:
        raise ValueError(f"{id}: expected a picture, got {error}; remove the file") from None
    rng = np.random.default_rng((number, turn))
    # the first crop of every picture is the largest square in its middle
    pixels = random_crop(picture, rng) if turn else crop(picture)
    return pixels, {"index": index, "caption": text, "file": id}


def crop(
    picture: Image.Image, share: float = 1.0, across: float = 0.5, down: float = 0.5
) -> np.ndarray:
    """Return a square of a picture, `share` of its shorter side, in RGB as uint8 (128, 128, 3)."""
    side = round(share * min(picture.size))
    left, top = round(across * (picture.width - side)), round(down * (picture.height - side))
    box = (left, top, left + side, top + side)
    return np.asarray(picture.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.LANCZOS, box))


def random_crop(picture: Image.Image, rng: np.random.Generator) -> np.ndarray:
    """Return a random square of a picture, mirrored or not, as uint8 (128, 128, 3)."""
    # a smaller square would be enlarged, and the model would learn its blur
    smallest = min(1.0, max(SMALLEST_CROP, IMAGE_SIZE / min(picture.size)))
    # Uniform in the logarithm: every factor of enlargement is equally likely.
    pixels = crop(picture, float(np.exp(rng.uniform(np.log(smallest), 0.0))), *rng.random(2))
    return pixels[:, ::-1] if rng.random() < 0.5 else pixels


def read_pictures(folder: Path) -> list[Picture]:
    """Return the pictures of a folder or a .jsonl file.

    Captions are read as `extract_tokens --data_dir` reads them; in a folder of nothing but pictures
    the files' names are the captions. Pictures that cannot be read are reported and left out.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if files and all(path.suffix.lower() in IMAGE_ENDINGS for path in files):
        return [
            (str(path.relative_to(folder)), caption_from_name(path.stem), path.read_bytes())
            for path in files
        ]
    pictures = []
    for item in captioned_images(folder):
        try:
            pictures.append((item.id, *item.load()))
        except Fault as fault:
            print(f"left out: {item.id}: {fault}", flush=True)
    return pictures


def caption_from_name(stem: str) -> str:
    """Return the words of a file's name, without an ImageNet id before and a number after them."""
    words = re.sub(r"[_\-\s]+", " ", stem).strip()
    return re.sub(r"^n\d{8} | \d+$", "", words)


def make_images(
    *,
    work_dir: str = "work/tiny",
    split: str = "train",
    count: int = 60000,
    pictures: str | None = None,
    holdout: int = 100,
) -> None:
    """Write `images_{split}.npy`, uint8 (count, 128, 128, 3), and `captions_{split}.jsonl`.

    The distinct captions become prompts, in `prompts_{split}.txt`, and `source_{split}.json` says
    what the images are of. A split that is there with as many images stays.

    Args:
        work_dir: folder of the intermediate files, created if missing.
        split: train, validation or test; of pictures train or validation.
        count: number of images.
        pictures: folder or .jsonl file of captioned pictures to crop; renders scenes if None.
        holdout: pictures used for validation only.
    """
    folder = Path(work_dir)
    captions_path, source_path = folder / f"captions_{split}.jsonl", folder / f"source_{split}.json"
    source = {"pictures": str(Path(pictures).resolve()), "holdout": holdout} if pictures else {}
    made_of = read_object(source_path) if source_path.exists() else source
    if made_of != source:
        allowed = f"a new folder: its {split} images are of {made_of or 'rendered scenes'}"
        refuse("work_dir", work_dir, allowed)
    if captions_path.exists() and len(read_captions(folder, split)) == count:
        return
    draw = partial(draw_scene, split)
    if pictures:
        draw = partial(draw_crop, pictures_of(Path(pictures), split, holdout))
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(source_path, encode_json(source))
    captions_path.unlink(missing_ok=True)
    shape = (count, IMAGE_SIZE, IMAGE_SIZE, 3)
    # on disk, since 60,000 images are 3 GB
    images = open_memmap(folder / f"images_{split}.npy", "w+", np.uint8, shape)
    records = []
    for index in trange(count, desc=split, unit="image", mininterval=10.0):
        images[index], record = draw(index)
        records.append(record)
    images.flush()
    prompts = "\n".join(dict.fromkeys(record["caption"] for record in records))
    (folder / f"prompts_{split}.txt").write_text(prompts + "\n", encoding="utf-8")
    # last, since captions say that the split is whole
    replace_file(captions_path, encode_lines(records))


if __name__ == "__main__":
    run_script(make_images)
