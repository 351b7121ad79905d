"""Run folders and folders of real images, as `evaluate` reads them; nothing in them is changed."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from configs.fields import SettingsError
from eval.durable import read_lines
from eval.metrics.base import ImageSet
from eval.run_folder import files_of

Line = dict[str, object]
_FIELDS = [
    "prompt",
    "seed",
    "tokens_sha256",
    "lossless",
    "tokens",
    "target_forwards",
    "tau",
    "mean_depth",
    "mean_nodes",
    "seconds",
]
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class Run:
    """One folder of generate_images: its records by id, the images that can be read, run.json."""

    name: str
    folder: Path
    manifest: Line
    records: dict[str, Line]
    images: ImageSet

    @property
    def settings(self) -> Line:
        """The settings of the latest command, by flag."""
        return self.manifest["settings"]

    @property
    def lossless(self) -> bool:
        """Whether the images have the target's own law."""
        return all(record["lossless"] for record in self.records.values())

    @cached_property
    def by_image(self) -> dict[tuple[str, int], Line]:
        """The records by what decides a lossless image: prompt and seed."""
        return {(record["prompt"], record["seed"]): record for record in self.records.values()}

    @cached_property
    def trace(self) -> dict[str, list[Line]]:
        """The rounds of each image, where --trace recorded them."""
        rounds: dict[str, list[Line]] = {}
        for path in files_of(self.folder, "trace.jsonl"):
            for line in read_lines(path):
                rounds.setdefault(line["id"], []).append(line)
        return rounds

    def path(self, record: Line) -> Path:
        """The image of a record."""
        return self.folder / "img" / f"{record['id']}.png"


def read_run(folder: str, name: str) -> Run:
    """A run; what cannot be used in it is named in its images' `left_out`.

    Raises SettingsError for a folder that holds no run, or none of whose images can be used.
    """
    place = Path(folder)
    if not (place / "run.json").is_file() or not files_of(place, "records.jsonl"):
        found = "no such folder" if not place.is_dir() else "no run.json or no records.jsonl"
        raise SettingsError(f"--output_dir {folder}: found {found}; allowed: folders that generate_images wrote")
    try:
        manifest = json.loads((place / "run.json").read_text("utf-8"))
        manifest["settings"].items()
        lines = [line for path in files_of(place, "records.jsonl") for line in read_lines(path)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"--output_dir {folder}: found, in its files, that {error}; allowed: a whole run"
        ) from error
    records, faults = _unique(lines)
    faults += [
        f"{path.name}: an image without a record"
        for path in sorted((place / "img").glob("*.png"))
        if path.stem not in records and not any(fault.startswith(f"{path.stem}:") for fault in faults)
    ]
    images = image_set(name, [(place / "img" / f"{key}.png", line["prompt"]) for key, line in records.items()])
    kept = {path.stem for path in images.paths}
    if not kept:
        raise SettingsError(f"--output_dir {folder}: found no image that can be used; allowed: a run with images")
    images = ImageSet(name, images.paths, images.keys, images.prompts, (*faults, *images.left_out))
    return Run(name, place, manifest, {key: line for key, line in records.items() if key in kept}, images)


def read_runs(folders: Sequence[str]) -> list[Run]:
    """All runs, named by their folders, with as much of the path as tells them apart."""
    parts = [Path(folder).resolve().parts for folder in folders]
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return [read_run(folder, "/".join(part[-depth:])) for folder, part in zip(folders, parts, strict=True)]


def read_reference(folder: str) -> ImageSet:
    """The images of a folder and the folders in it; SettingsError if none can be read."""
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.suffix.lower() in _IMAGE_ENDINGS]
    images = image_set(Path(folder).name, [(path, "") for path in paths])
    if not len(images):
        raise SettingsError(f"--ref_dir {folder}: found no image; allowed: a folder of {', '.join(_IMAGE_ENDINGS)}")
    return images


def image_set(name: str, files: Iterable[tuple[Path, str]]) -> ImageSet:
    """The files, with their prompts, that hold an image; the others are left out by name."""
    whole, left_out = [], []
    for path, prompt in files:
        try:
            with Image.open(path) as image:
                image.load()
            whole.append((path, hashlib.sha256(path.read_bytes()).hexdigest(), prompt))
        except FileNotFoundError:
            left_out.append(f"{path.stem}: a record without an image")
        except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
            left_out.append(f"{path.stem}: an image that cannot be read ({type(error).__name__})")
    paths, keys, prompts = zip(*whole, strict=True) if whole else ((), (), ())
    return ImageSet(name, paths, keys, prompts, tuple(left_out))


def _unique(lines: Sequence[Line]) -> tuple[dict[str, Line], list[str]]:
    """The records by id; ids with different records and records that lack a figure are left out, and said so."""
    records: dict[str, Line] = {}
    doubted: dict[str, str] = {}
    for line in lines:
        if missing := [field for field in _FIELDS if field not in line]:
            doubted[line["id"]] = f"{line['id']}: a record without {', '.join(missing)}"
            continue
        before = records.setdefault(line["id"], line)
        if before["tokens_sha256"] != line["tokens_sha256"]:
            doubted[line["id"]] = f"{line['id']}: an id with two different records"
    return {key: line for key, line in records.items() if key not in doubted}, list(doubted.values())
