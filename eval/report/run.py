"""A finished run as `evaluate` reads it: records, images and traces; nothing in it is changed.

What cannot be used is left out by name.
"""

import hashlib
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from configs.downloads import failed_download
from configs.evaluation import distinct_runs, run_parts
from configs.fields import Flag, found_at, mismatch, one_of, refusing
from configs.methods import OF_YOUR_OWN
from configs.rules import RULES
from configs.targets import TARGETS
from eval.metrics.base import ImageSet, Unavailable
from runs.captioned_images import folders_in
from runs.records import (
    MANIFEST,
    RECORDS,
    TOKENS,
    TRACE,
    commands_of,
    files_of,
    image_files,
    image_path,
    read_manifest,
    read_records,
)
from support.json_lines import Line, scan_lines
from support.wording import differences, first_of

Key = tuple[str, int]  # what decides a lossless image: prompt and seed
_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
# PIL raises a SyntaxError for a broken PNG.
_UNREADABLE = (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError)
# The settings that the tables need.
_SETTINGS: dict[str, Any] = {
    "model": str,
    "method": str,
    "prompt": str,
    "verifier": str,
    "dtype": str,
}
_SETTINGS |= {"temperature": int | float, "batch_size": int}


@dataclass(frozen=True)
class Run:
    """A run folder: its records by image id, the images that can be read, and run.json."""

    name: str
    folders: tuple[Path, ...]  # several: of machines that made slices of one run
    manifest: Line
    records: dict[str, Line]
    images: ImageSet

    @property
    def folder(self) -> Path:
        """The first of its folders."""
        return self.folders[0]

    @property
    def settings(self) -> Line:
        """The settings of the latest command, by flag."""
        return self.manifest["settings"]

    @property
    def lossless(self) -> bool:
        """Whether the images have the target's own distribution."""
        return all(record["lossless"] for record in self.records.values())

    @property
    def pictured(self) -> bool:
        """Whether all image files are pictures, not only tokens."""
        return all(record.get("pixels") != TOKENS for record in self.records.values())

    @property
    def same_tokens(self) -> bool:
        """Whether plain decoding with the same seeds must give the same images, up to rounding."""
        verifier = RULES[self.settings["verifier"]]
        return self.lossless and verifier.repeats(self.settings["temperature"])

    @cached_property
    def by_image(self) -> dict[Key, Line]:
        return {(record["prompt"], record["seed"]): record for record in self.records.values()}

    def part(self, keys: Sequence[Key]) -> ImageSet:
        """Return the images of these prompts and seeds, in this order."""
        numbers = {path.stem: number for number, path in enumerate(self.images.paths)}
        return self.images.part([numbers[self.by_image[key]["id"]] for key in keys])

    @cached_property
    def files(self) -> dict[str, Path]:
        """The images' files by id."""
        return {path.stem: path for path in self.images.paths}


def read_run(folder: str, name: str, flag: str = "--output_dir") -> Run:
    """Read a run folder; what cannot be used in it is named in `images.left_out`.

    name: of the run in tables. flag: the flag that gave the folder, for errors: a SettingsError if
    it holds no run, or none of its images can be used.
    """
    path = Path(folder)
    if not (path / MANIFEST).is_file() or not files_of(path, RECORDS):
        lacks = f"no {MANIFEST} or no {RECORDS}" if path.is_dir() else found_at(path)
        raise mismatch(f"{flag} {folder}", lacks, "folders that generate_images wrote")
    manifest = _manifest(path, flag)
    records, faults = read_records(path)
    files = [
        ImageFile(image_path(path, key), record["prompt"], record["image_sha256"])
        for key, record in records.items()
    ]
    images = image_set(name, files)
    if not len(images):
        raise mismatch(f"{flag} {folder}", "no image that can be used", "a run with images")
    # A faulty record is named once, not also for its image.
    recorded = records.keys() | {fault.partition(":")[0] for fault in faults}
    unrecorded = (
        f"{image.name}: an image without a record"
        for image in image_files(path)
        if image.stem not in recorded
    )
    images = replace(images, left_out=(*faults, *unrecorded, *images.left_out))
    usable = {image.stem: records[image.stem] for image in images.paths}
    return Run(name, (path,), manifest, usable, images)


def joined(run: Run, part: Run, flag: str = "--output_dir") -> Run:
    """Return the run that two folders hold slices of; an image that is in both counts once.

    A SettingsError if their images are not of one kind.
    """
    here, there = run.manifest["identity"], part.manifest["identity"]
    # another device may round differently
    changes = differences(here, there | {"device": here.get("device")})
    twice = run.records.keys() & part.records.keys()
    records = (run.records, part.records)
    tokens = {name: {of[name]["tokens_sha256"] for of in records} for name in sorted(twice)}
    changes += [f"{name}: other tokens" for name, found in tokens.items() if len(found) > 1]
    if changes:
        got = f"other images than in {run.folder}: {first_of(changes)}"
        raise mismatch(f"{flag} {part.folder}", got, "a slice of the same run")
    new = [n for n, path in enumerate(part.images.paths) if path.stem not in twice]
    more, found = part.images.part(new), run.images
    images = ImageSet(
        found.name, found.paths + more.paths, found.keys + more.keys,
        found.prompts + more.prompts, found.left_out + part.images.left_out,
    )  # fmt: skip
    commands = [*run.manifest["earlier"], *commands_of(part.manifest)]
    manifest = run.manifest | {"earlier": commands}
    added = {name: record for name, record in part.records.items() if name not in twice}
    return Run(run.name, run.folders + part.folders, manifest, run.records | added, images)


def read_runs(folders: Sequence[str], baseline: str | None = None) -> list[Run]:
    """Read all runs, named by their folders with as much of the path as tells them apart.

    folders: one+two is a run of two folders; a run given twice is read once.
    baseline: the folder that --baseline gave, for errors.
    """
    folders = distinct_runs(folders)
    parts = [run_parts(folder) for folder in folders]

    def name(folders: Sequence[str], depth: int) -> str:
        return "+".join("/".join(Path(folder).resolve().parts[-depth:]) for folder in folders)

    depth = 1  # folders of a name: `one/ar` and `other/ar` would both be `ar`
    while len({name(folders, depth) for folders in parts}) < len(parts):
        depth += 1
    flags = ["--baseline" if folder == baseline else "--output_dir" for folder in folders]
    return [
        reduce(
            partial(joined, flag=flag),
            [read_run(one, name(folders, depth), flag) for one in folders],
        )
        for folders, flag in zip(parts, flags, strict=True)
    ]


def common_keys(runs: Sequence[Run]) -> list[Key]:
    """Return the prompts and seeds that all runs have."""
    return [key for key in runs[0].by_image if all(key in run.by_image for run in runs)]


def common_images(runs: Sequence[Run]) -> tuple[list[ImageSet], list[str]]:
    """Return each run's images of the prompts and seeds that all runs have, in the same order.

    If the runs have none in common, returns all images of each. Repeats of an image are left out.
    The remarks say so, and where the runs do not have the same prompts and seeds.
    """
    shared, remarks = common_keys(runs), []
    counts = ", ".join(f"{run.name} {len(run.images)}" for run in runs)
    if not shared:
        remarks.append(f"images of other prompts and seeds by run, not to be compared: {counts}")
    elif any(len(run.images) > len(shared) for run in runs):
        which = f"image metrics are of the {len(shared)} prompts and seeds that all runs have"
        remarks.append(f"{which}, of {counts}")
    alike = [[run.part(shared) for run in runs]] if shared else [[run.images] for run in runs]
    found: list[ImageSet] = []
    for sets in alike:
        kept = _first_of_their_kind(sets)
        if repeats := len(sets[0]) - len(kept):
            names = ", ".join(images.name for images in sets)
            which = f"{repeats} of {len(sets[0])} images, which repeat another of their prompt"
            remarks.append(f"{names}: image metrics leave out {which}")
        found += [images.part(kept) for images in sets]
    return found, remarks


def _first_of_their_kind(sets: Sequence[ImageSet]) -> list[int]:
    """Return the numbers of the images that in no set repeat an earlier one of their prompt.

    At temperature 0 all seeds give one image; metrics would count it as several that agree.
    """
    numbers = list(range(len(sets[0])))
    for images in sets:
        first: dict[tuple[str, str], int] = {}
        rows = zip(images.prompts, images.keys, strict=True)
        own = {n for n, row in enumerate(rows) if first.setdefault(row, n) == n}
        numbers = [n for n in numbers if n in own]
    return numbers


def _manifest(folder: Path, flag: str) -> Line:
    """Return run.json; a SettingsError if it cannot be read or lacks what the tables need."""
    with refusing(flag):
        manifest = read_manifest(folder)
    settings = manifest["settings"]
    wrong = [name for name, kind in _SETTINGS.items() if not isinstance(settings.get(name), kind)]
    advice = ""
    if not wrong and settings["verifier"] not in RULES:
        wrong, advice = ["verifier"], OF_YOUR_OWN
    if wrong:
        got = ", ".join(f"--{name} {settings.get(name)!r}" for name in wrong)
        wanted = "settings that generate_images wrote"
        raise mismatch(f"{flag} {folder / MANIFEST}", got, wanted, advice)
    return manifest


class ImageFile(NamedTuple):
    """A file of an image, and what is known of its content."""

    path: Path
    prompt: str = ""
    sha256: str | None = None  # of the content it was saved with, where that is known


def image_set(name: str, files: Iterable[ImageFile]) -> ImageSet:
    """Return the files that hold their image, with the others named in `left_out`."""
    whole, left_out = [], []
    for file in files:
        try:
            whole.append((file.path, _content_hash(file), file.prompt))
        except Unavailable as fault:
            left_out.append(f"{file.path.stem}: {fault}")
    paths, keys, prompts = zip(*whole, strict=True) if whole else ((), (), ())
    return ImageSet(name, paths, keys, prompts, tuple(left_out))


def _content_hash(file: ImageFile) -> str:
    """Return the sha256 of the content; Unavailable if it is no readable image, or another one."""
    content = b""  # where not even reading it works
    try:
        content = file.path.read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            if image.format == "PNG":
                image.verify()  # its checksums, which is much faster than decoding
            else:
                image.load()
    except FileNotFoundError as error:
        raise Unavailable("a record without an image") from error
    except _UNREADABLE as error:
        unreadable = f"an image that cannot be read ({type(error).__name__})"
        raise Unavailable(failed_download(content) or unreadable) from error
    digest = hashlib.sha256(content).hexdigest()
    if file.sha256 not in (None, digest):
        raise Unavailable("another image than the one that was saved")
    return digest


def reference_files(folder: str) -> list[Path]:
    """Return the image files of --ref_dir and the folders in it; SettingsError if there is none."""
    found = folders_in(Path(folder)) if Path(folder).is_dir() else ()
    paths = [root / name for root, names in found for name in names]
    paths = [path for path in paths if path.suffix.lower() in _ENDINGS]
    if not paths:
        raise mismatch(Flag("ref_dir", folder), "no image", f"a folder of {one_of(_ENDINGS)} files")
    return paths


def read_reference(folder: str) -> ImageSet:
    """Return the images of --ref_dir and the folders in it; Unavailable if none can be read."""
    images = image_set(Path(folder).name, map(ImageFile, reference_files(folder)))
    if not len(images):
        raise Unavailable(f"no image in {folder} can be read")
    return images


def accepted_by_position(rounds: Iterable[Line], tokens: int) -> np.ndarray:
    """Return the accepted draft tokens of each token's round (tokens,), NaN at the first.

    ValueError if the rounds do not decide every position but the first.
    """
    accepted = [np.nan]  # the prefill decides position 0
    for entry in sorted(rounds, key=lambda entry: entry["round"]):
        position, decided = len(accepted), entry["accepted"] + 1
        if entry["position"] != position or len(entry["top1"]) != decided:
            raise ValueError(f"round {entry['round']} does not continue at position {position}")
        accepted += [entry["accepted"]] * decided
    if len(accepted) != tokens:
        raise ValueError(f"found rounds up to position {len(accepted)} of {tokens}")
    return np.array(accepted)


def read_maps(run: Run, ids: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the maps by image id, of the images that --trace recorded, and what is damaged.

    ids: of the images to return; the others' rounds are not kept.
    """
    rounds: dict[str, dict[object, Line]] = {}  # by number: a resumed run may repeat the last ones
    faults: list[str] = []
    for path in [path for folder in run.folders for path in files_of(folder, TRACE)]:
        for number, entry in scan_lines(path):
            if entry is None:
                faults.append(f"{path.name}, line {number}: not a round")
            elif entry["id"] in ids:
                rounds.setdefault(entry["id"], {})[entry.get("round")] = entry
    maps = {}
    for name, entries in rounds.items():
        record = run.records[name]
        try:
            first, columns = _grid(run, record)
            accepted = accepted_by_position(entries.values(), record["tokens"])
            maps[name] = accepted[first:].reshape(-1, columns)
        except (ValueError, KeyError, TypeError) as error:
            faults.append(f"{name}: a trace that cannot be used ({error!r})")
    return maps, faults


def _grid(run: Run, record: Line) -> tuple[int, int]:
    """Return the tokens before those of the picture, and the picture's per row, by its shape.

    ValueError if the tokens do not fill such rows.
    """
    with Image.open(run.files[record["id"]]) as image:
        width, height = image.size
    # Records have no grid; tokens are square, so the picture's shape gives it.
    target = TARGETS.get(run.settings["model"])
    first = prod(target.sizes.small_grid(height, width)) if target and target.sizes else 0
    tokens = record["tokens"] - first
    columns = max(1, round((tokens * width / height) ** 0.5))
    if tokens < 1 or tokens % columns:
        got = f"{record['tokens']} tokens for {width} x {height} pixels"
        raise ValueError(f"found {got}; they do not fill its rows")
    return first, columns
