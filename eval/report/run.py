"""A finished run as `evaluate` reads it: records, images and traces; nothing in it is changed.

What cannot be used is left out by name.
"""

import hashlib
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from configs.acceptance import VERIFIERS
from configs.downloads import failed_download
from configs.fields import SettingsError, mismatch, one_of
from eval.metrics.base import ImageSet, Unavailable
from runs.run_files import (
    MANIFEST,
    RECORDS,
    TRACE,
    files_of,
    image_path,
    read_manifest,
    read_records,
)
from support.json_files import Line, scan_lines

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_UNREADABLE = (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError)
# The settings that the tables need.
_SETTINGS = {
    "model": str,
    "method": str,
    "prompt": str,
    "verifier": str,
    "dtype": str,
    "temperature": int | float,
    "batch_size": int,
}


@dataclass(frozen=True)
class Run:
    """A run folder: its records by image id, the images that can be read, and run.json."""

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
        """Whether the images have the target's own distribution."""
        return all(record["lossless"] for record in self.records.values())

    @property
    def same_tokens(self) -> bool:
        """Whether plain decoding with the same seeds must give the same images, up to rounding."""
        verifier = VERIFIERS[self.settings["verifier"]]
        return self.lossless and verifier.repeats(self.settings["temperature"])

    @cached_property
    def by_image(self) -> dict[tuple[str, int], Line]:
        """The records by what decides a lossless image: prompt and seed."""
        return {(record["prompt"], record["seed"]): record for record in self.records.values()}

    def part(self, keys: Sequence[tuple[str, int]]) -> ImageSet:
        """Return the images of these prompts and seeds, in this order."""
        numbers = {path.stem: number for number, path in enumerate(self.images.paths)}
        order = [numbers[self.by_image[key]["id"]] for key in keys]
        paths, hashes, prompts = (
            tuple(values[number] for number in order)
            for values in (self.images.paths, self.images.keys, self.images.prompts)
        )
        return ImageSet(self.name, paths, hashes, prompts)

    def path(self, record: Line) -> Path:
        """Return the image file of a record."""
        return image_path(self.folder, record["id"])


def read_run(folder: str, name: str, flag: str = "--output_dir") -> Run:
    """Read a run folder; what cannot be used in it is named in `images.left_out`.

    Args:
        folder: of generate_images.
        name: of the run in tables.
        flag: the flag that gave the folder, for errors.

    Raises:
        SettingsError: the folder holds no run, or none of its images can be used.
    """
    path = Path(folder)
    if not (path / MANIFEST).is_file() or not files_of(path, RECORDS):
        lacks = f"no {MANIFEST} or no {RECORDS}" if path.is_dir() else "no such folder"
        raise mismatch(f"{flag} {folder}", lacks, "folders that generate_images wrote")
    manifest = _manifest(path, flag)
    records, faults = read_records(path)
    files = [
        ImageFile(image_path(path, key), record["prompt"], record.get("image_sha256"))
        for key, record in records.items()
    ]
    images = image_set(name, files)
    kept = {path.stem for path in images.paths}
    if not kept:
        raise mismatch(f"{flag} {folder}", "no image that can be used", "a run with images")
    left_out = (*faults, *_unrecorded(path, records, faults), *images.left_out)
    images = ImageSet(name, images.paths, images.keys, images.prompts, left_out)
    usable = {key: record for key, record in records.items() if key in kept}
    return Run(name, path, manifest, usable, images)


def read_runs(folders: Sequence[str], baseline: str | None = None) -> list[Run]:
    """Read all runs, named by their folders with as much of the path as tells them apart.

    Args:
        folders: of the runs.
        baseline: the one that --baseline gave, for errors.
    """
    paths = [Path(folder).resolve().parts for folder in folders]
    depth = 1
    while len({path[-depth:] for path in paths}) < len(paths):
        depth += 1
    flags = ["--baseline" if folder == baseline else "--output_dir" for folder in folders]
    names = ["/".join(path[-depth:]) for path in paths]
    return [read_run(*run) for run in zip(folders, names, flags, strict=True)]


def common_keys(runs: Sequence[Run]) -> list[tuple[str, int]]:
    """Return the prompts and seeds that all runs have."""
    return [key for key in runs[0].by_image if all(key in run.by_image for run in runs)]


def common_images(runs: Sequence[Run]) -> tuple[list[ImageSet], str | None]:
    """Return each run's images of the prompts and seeds that all runs have, in the same order.

    If the runs have none in common, returns all images of each. The second value is a remark
    where the runs do not have the same prompts and seeds.
    """
    shared = common_keys(runs)
    counts = ", ".join(f"{run.name} {len(run.images)}" for run in runs)
    if not shared:
        remark = f"images of other prompts and seeds by run, not to be compared: {counts}"
        return [run.images for run in runs], remark
    more = any(len(run.images) > len(shared) for run in runs)
    remark = (
        f"image metrics are of the {len(shared)} prompts and seeds that all runs have, of {counts}"
    )
    return [run.part(shared) for run in runs], remark if more else None


def _unrecorded(folder: Path, records: dict[str, Line], faults: Sequence[str]) -> list[str]:
    """Name the images that no record, not even a faulty one, belongs to."""
    faulty = {fault.partition(":")[0] for fault in faults}
    return [
        f"{path.name}: an image without a record"
        for path in sorted((folder / "img").glob("*.png"))
        if path.stem not in records and path.stem not in faulty
    ]


def _manifest(folder: Path, flag: str) -> Line:
    """Return run.json; a SettingsError if it cannot be read or lacks what the tables need."""
    try:
        manifest = read_manifest(folder)
    except SettingsError as error:
        raise SettingsError(f"{flag} {error}") from error
    settings = manifest["settings"]
    wrong = [name for name, kind in _SETTINGS.items() if not isinstance(settings.get(name), kind)]
    if not wrong and settings["verifier"] not in VERIFIERS:
        wrong.append("verifier")
    if wrong:
        shown = ", ".join(f"--{name} {settings.get(name)!r}" for name in wrong)
        path = folder / MANIFEST
        raise mismatch(f"{flag} {path}", shown, "settings that generate_images wrote")
    settings.setdefault("proposal", None)
    return manifest


@dataclass(frozen=True)
class ImageFile:
    """A file that should hold an image.

    Attributes:
        sha256: hash of the content it was saved with, where that is known.
    """

    path: Path
    prompt: str = ""
    sha256: str | None = None

    def content_hash(self) -> str:
        """Return the sha256 of the content; a Fault if it is not a readable image, or another."""
        try:
            content = self.path.read_bytes()
            with Image.open(io.BytesIO(content)) as image:
                if image.format == "PNG":
                    image.verify()  # its checksums, which is much faster than decoding
                else:
                    image.load()
        except FileNotFoundError as error:
            raise Fault("a record without an image") from error
        except _UNREADABLE as error:
            why = (
                failed_download(content) or f"an image that cannot be read ({type(error).__name__})"
            )
            raise Fault(why) from error
        digest = hashlib.sha256(content).hexdigest()
        if self.sha256 not in (None, digest):
            raise Fault("another image than the one that was saved")
        return digest


class Fault(Exception):
    """Why a file is left out, in words."""


def image_set(name: str, files: Iterable[ImageFile]) -> ImageSet:
    """Return the files that hold their image, with the others named in `left_out`."""
    whole, left_out = [], []
    for file in files:
        try:
            whole.append((file.path, file.content_hash(), file.prompt))
        except Fault as fault:
            left_out.append(f"{file.path.stem}: {fault}")
    paths, keys, prompts = zip(*whole, strict=True) if whole else ((), (), ())
    return ImageSet(name, paths, keys, prompts, tuple(left_out))


def reference_files(folder: str) -> list[Path]:
    """Return the image files of --ref_dir and the folders in it; SettingsError if there is none."""
    files = sorted(Path(folder).rglob("*"))
    paths = [path for path in files if path.suffix.lower() in _ENDINGS]
    if not paths:
        raise mismatch(f"--ref_dir {folder}", "no image", f"a folder of {one_of(_ENDINGS)} files")
    return paths


def read_reference(folder: str) -> ImageSet:
    """Return the images of --ref_dir and the folders in it; Unavailable if none can be read."""
    images = image_set(Path(folder).name, map(ImageFile, reference_files(folder)))
    if not len(images):
        raise Unavailable(f"no image in {folder} can be read")
    return images


@dataclass(frozen=True)
class ImageTrace:
    """An image's rounds by position, arrays of (tokens,).

    Attributes:
        rounds: number of the round that decided a position, -1 at position 0.
        accepted: draft tokens accepted in that round, NaN at position 0.
        cut: whether the image's end cut that round's tree.
        top1: the target's highest probability at the position, NaN at position 0.
    """

    rounds: np.ndarray
    accepted: np.ndarray
    cut: np.ndarray
    top1: np.ndarray

    @staticmethod
    def of(rounds: Sequence[Line], tokens: int) -> "ImageTrace":
        """Read an image's rounds, as trace.jsonl has them.

        Raises:
            ValueError: they do not decide every position after the first.
        """
        numbers, cut = np.full(tokens, -1), np.zeros(tokens, dtype=bool)
        accepted, top1 = np.full(tokens, np.nan), np.full(tokens, np.nan)
        position = 1  # the prefill decides position 0
        for entry in sorted(rounds, key=lambda entry: entry["round"]):
            number, end = entry["round"], position + entry["accepted"] + 1
            fits = entry["position"] == position and len(entry["top1"]) == end - position
            if not fits or end > tokens:
                raise ValueError(f"round {number} does not continue at position {position}")
            numbers[position:end], accepted[position:end] = number, entry["accepted"]
            # The tree could not grow beyond the last token, so few accepted drafts say nothing.
            cut[position:end] = entry["depth"] >= tokens - position - 1
            top1[position:end] = entry["top1"]
            position = end
        if position != tokens:
            raise ValueError(f"found rounds up to position {position} of {tokens}")
        return ImageTrace(numbers, accepted, cut, top1)

    @property
    def whole(self) -> np.ndarray:
        """The accepted draft tokens (tokens,), NaN also where the tree was cut."""
        return np.where(self.cut, np.nan, self.accepted)

    @property
    def starts(self) -> np.ndarray:
        """The first position of every round."""
        return 1 + np.flatnonzero(np.diff(self.rounds))


def grid_columns(tokens: int, size: tuple[int, int]) -> int:
    """Return the image tokens per row, from the (width, height) of the image in pixels.

    Raises:
        ValueError: the tokens do not fill rows of this length.
    """
    columns = max(1, round((tokens * size[0] / size[1]) ** 0.5))
    if tokens % columns:
        raise ValueError(
            f"found {tokens} tokens for {size[0]} x {size[1]} pixels; they do not fill its rows"
        )
    return columns


def accepted_lengths(run: Run, ids: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the accepted lengths of each token's round, by image id, and what cannot be used.

    The lengths (rows, columns) are numbers of draft tokens, NaN at the first token, for the images
    that --trace recorded. What cannot be used is named in words.

    Args:
        run: whose trace is read.
        ids: of the images to return; the others' rounds are not kept.
    """
    rounds: dict[str, dict[object, Line]] = {}  # by number: a resumed run may repeat the last ones
    faults: list[str] = []
    for path in files_of(run.folder, TRACE):
        for number, entry in scan_lines(path):
            if entry is None:
                faults.append(f"{path.name}, line {number}: not a round")
            elif entry["id"] in ids:
                rounds.setdefault(entry["id"], {})[entry.get("round")] = entry
    lengths = {}
    for name, entries in rounds.items():
        try:
            trace = ImageTrace.of(list(entries.values()), run.records[name]["tokens"])
            with Image.open(run.path(run.records[name])) as image:
                columns = grid_columns(len(trace.rounds), image.size)
            lengths[name] = trace.accepted.reshape(-1, columns)
        except (ValueError, KeyError, TypeError) as error:
            faults.append(f"{name}: a trace that cannot be used ({error!r})")
    return lengths, faults
