"""Run folders and folders of real images, as `evaluate` reads them; nothing in them is changed."""

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from PIL import Image

from configs.acceptance import VERIFIERS
from configs.fields import SettingsError
from eval.metrics.base import ImageSet, Unavailable
from runs.records import read_records
from runs.run_folder import Line, files_of

_SETTINGS = {"model": str, "method": str, "prompt": str, "verifier": str, "dtype": str, "temperature": int | float,
             "batch_size": int}  # fmt: skip
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

    @property
    def same_tokens(self) -> bool:
        """Whether the images are to be those of plain decoding with the same seeds, up to rounding."""
        return self.lossless and VERIFIERS[self.settings["verifier"]].repeats(
            self.settings["temperature"]
        )

    @cached_property
    def by_image(self) -> dict[tuple[str, int], Line]:
        """The records by what decides a lossless image: prompt and seed."""
        return {(record["prompt"], record["seed"]): record for record in self.records.values()}

    def part(self, keys: Sequence[tuple[str, int]]) -> ImageSet:
        """The images of these prompts and seeds, in this order."""
        places = {path.stem: number for number, path in enumerate(self.images.paths)}
        order = [places[self.by_image[key]["id"]] for key in keys]
        paths, hashes, prompts = (
            tuple(values[number] for number in order)
            for values in (self.images.paths, self.images.keys, self.images.prompts)
        )
        return ImageSet(self.name, paths, hashes, prompts)

    def path(self, record: Line) -> Path:
        """The image of a record."""
        return self.folder / "img" / f"{record['id']}.png"


def read_run(folder: str, name: str, flag: str = "--output_dir") -> Run:
    """A run; what cannot be used in it is named in its images' `left_out`. flag: that gave the folder, for errors.

    Raises SettingsError for a folder that holds no run, or none of whose images can be used.
    """
    place = Path(folder)
    if not (place / "run.json").is_file() or not files_of(place, "records.jsonl"):
        found = "no such folder" if not place.is_dir() else "no run.json or no records.jsonl"
        raise SettingsError(
            f"{flag} {folder}: found {found}; allowed: folders that generate_images wrote"
        )
    manifest = _manifest(place / "run.json", flag)
    records, faults = read_records(place)
    faults += [
        f"{path.name}: an image without a record"
        for path in sorted((place / "img").glob("*.png"))
        if path.stem not in records
        and not any(fault.startswith(f"{path.stem}:") for fault in faults)
    ]
    images = image_set(
        name, [(place / "img" / f"{key}.png", line["prompt"]) for key, line in records.items()]
    )
    kept = {path.stem for path in images.paths}
    if not kept:
        raise SettingsError(
            f"{flag} {folder}: found no image that can be used; allowed: a run with images"
        )
    images = ImageSet(name, images.paths, images.keys, images.prompts, (*faults, *images.left_out))
    return Run(
        name, place, manifest, {key: line for key, line in records.items() if key in kept}, images
    )


def read_runs(folders: Sequence[str], baseline: str | None = None) -> list[Run]:
    """All runs, named by their folders, with as much of the path as tells them apart. baseline: that of --baseline."""
    parts = [Path(folder).resolve().parts for folder in folders]
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    flags = ["--baseline" if folder == baseline else "--output_dir" for folder in folders]
    names = ["/".join(part[-depth:]) for part in parts]
    return [read_run(*each) for each in zip(folders, names, flags, strict=True)]


def reference_files(folder: str) -> list[Path]:
    """The image files of a folder and the folders in it; SettingsError if there is none."""
    paths = [
        path for path in sorted(Path(folder).rglob("*")) if path.suffix.lower() in _IMAGE_ENDINGS
    ]
    if not paths:
        raise SettingsError(
            f"--ref_dir {folder}: found no image; allowed: a folder of {', '.join(_IMAGE_ENDINGS)}"
        )
    return paths


def read_reference(folder: str) -> ImageSet:
    """The images of a folder and the folders in it; Unavailable if none can be read."""
    images = image_set(Path(folder).name, [(path, "") for path in reference_files(folder)])
    if not len(images):
        raise Unavailable(f"no image in {folder} can be read")
    return images


def common_keys(runs: Sequence[Run]) -> list[tuple[str, int]]:
    """The prompts and seeds that all runs have."""
    return [key for key in runs[0].by_image if all(key in run.by_image for run in runs)]


def common_images(runs: Sequence[Run]) -> tuple[list[ImageSet], str | None]:
    """The runs' images of the prompts and seeds that all runs have, in the same order, and a remark if some have more;
    all images of each, and a remark, if the runs have none in common."""
    shared = common_keys(runs)
    counts = ", ".join(f"{run.name} {len(run.images)}" for run in runs)
    if not shared:
        return [
            run.images for run in runs
        ], f"images of other prompts and seeds by run, not to be compared: {counts}"
    more = any(len(run.images) > len(shared) for run in runs)
    remark = (
        f"image metrics are of the {len(shared)} prompts and seeds that all runs have, of {counts}"
    )
    return [run.part(shared) for run in runs], remark if more else None


def image_set(name: str, files: Iterable[tuple[Path, str]]) -> ImageSet:
    """The files, with their prompts, that hold an image; the others are left out by name."""
    whole, left_out = [], []
    for path, prompt in files:
        try:
            content = path.read_bytes()
            with Image.open(io.BytesIO(content)) as image:
                image.verify() if image.format == "PNG" else image.load()  # a PNG's checksums take no decoding
            whole.append((path, hashlib.sha256(content).hexdigest(), prompt))
        except FileNotFoundError:
            left_out.append(f"{path.stem}: a record without an image")
        except (
            OSError,
            SyntaxError,
            ValueError,
            IndexError,
            Image.DecompressionBombError,
        ) as error:
            left_out.append(f"{path.stem}: an image that cannot be read ({type(error).__name__})")
    paths, keys, prompts = zip(*whole, strict=True) if whole else ((), (), ())
    return ImageSet(name, paths, keys, prompts, tuple(left_out))


def _manifest(path: Path, flag: str) -> Line:
    """run.json; a SettingsError if it cannot be read or lacks settings that the tables need."""
    error = f"{flag} {path.parent}: found"
    try:
        manifest = json.loads(path.read_text("utf-8"), parse_constant=_no_number)
        settings = {name: manifest["settings"].get(name) for name in (*_SETTINGS, "proposal")}
        dict(manifest.get("identity") or {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise SettingsError(
            f"{error} a run.json that cannot be read ({fault}); allowed: a whole run"
        ) from fault
    wrong = [name for name, kind in _SETTINGS.items() if not isinstance(settings[name], kind)]
    if not wrong and settings["verifier"] not in VERIFIERS:
        wrong.append("verifier")
    if wrong:
        shown = ", ".join(f"--{name} {settings[name]!r}" for name in wrong)
        raise SettingsError(
            f"{error} a run.json with {shown}; allowed: settings that generate_images wrote"
        )
    manifest["settings"].setdefault("proposal", None)
    return manifest


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")
