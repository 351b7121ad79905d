"""A finished run: a folder of generate_images as `evaluate` reads it; nothing in it is changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from configs.acceptance import VERIFIERS
from configs.fields import SettingsError
from eval.metrics.base import ImageSet
from eval.report.image_sets import ImageFile, image_set
from runs.run_files import MANIFEST, RECORDS, files_of, image_path, read_manifest, read_records
from support.json_files import Line

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
        places = {path.stem: number for number, path in enumerate(self.images.paths)}
        order = [places[self.by_image[key]["id"]] for key in keys]
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
    place = Path(folder)
    if not (place / MANIFEST).is_file() or not files_of(place, RECORDS):
        found = "no such folder" if not place.is_dir() else f"no {MANIFEST} or no {RECORDS}"
        raise SettingsError(
            f"{flag} {folder}: found {found}; allowed: folders that generate_images wrote"
        )
    manifest = _manifest(place, flag)
    records, faults = read_records(place)
    files = [
        ImageFile(image_path(place, key), line["prompt"], line.get("image_sha256"))
        for key, line in records.items()
    ]
    images = image_set(name, files)
    kept = {path.stem for path in images.paths}
    if not kept:
        raise SettingsError(
            f"{flag} {folder}: found no image that can be used; allowed: a run with images"
        )
    left_out = (*faults, *_unrecorded(place, records, faults), *images.left_out)
    images = ImageSet(name, images.paths, images.keys, images.prompts, left_out)
    usable = {key: line for key, line in records.items() if key in kept}
    return Run(name, place, manifest, usable, images)


def read_runs(folders: Sequence[str], baseline: str | None = None) -> list[Run]:
    """Read all runs, named by their folders with as much of the path as tells them apart.

    Args:
        folders: of the runs.
        baseline: the one that --baseline gave, for errors.
    """
    parts = [Path(folder).resolve().parts for folder in folders]
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    flags = ["--baseline" if folder == baseline else "--output_dir" for folder in folders]
    names = ["/".join(part[-depth:]) for part in parts]
    return [read_run(*each) for each in zip(folders, names, flags, strict=True)]


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


def _unrecorded(place: Path, records: dict[str, Line], faults: Sequence[str]) -> list[str]:
    """Name the images that no record, not even a faulty one, belongs to."""
    faulty = {fault.partition(":")[0] for fault in faults}
    return [
        f"{path.name}: an image without a record"
        for path in sorted((place / "img").glob("*.png"))
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
        place = folder / MANIFEST
        raise SettingsError(
            f"{flag} {place}: found {shown}; allowed: settings that generate_images wrote"
        )
    settings.setdefault("proposal", None)
    return manifest
