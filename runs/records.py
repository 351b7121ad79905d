"""What a run folder holds, for those who read it: settings, records, traces and images.

Its files: runs/run_folder.py. Does not import torch.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from configs.fields import mismatch
from configs.model import TIMED
from support.durable import files_named
from support.json_files import read_object
from support.json_lines import Line, refuse_line, scan_lines, stream_lines
from support.locks import RANK

MANIFEST, RECORDS, TRACE = "run.json", "records.jsonl", "trace.jsonl"
TOKENS = "tokens"  # what the entry `pixels` of a record says of a picture that shows only tokens
IMAGE = r"[A-Za-z0-9][A-Za-z0-9.-]*_[0-9]+\.png"  # names of images
_KINDS = {"prompt": str, "seed": int, "tokens_sha256": str, "image_sha256": str, "lossless": bool}
_LARGEST = 1e300  # also of whole numbers, which JSON bounds by nothing
_POSITIVE = ("tokens", "target_forwards", "seconds")
_FIGURES = (*_POSITIVE, "tau", "mean_drafted_depth", "mean_verified_depth", "mean_nodes")
_SOMETIMES = ("cpu_seconds", "stopped_seconds")  # figures that a record may lack


def tau(records: Sequence[Line]) -> float:
    """Return the mean tokens per verification round; the prefill decides an image's first token."""
    rounds = sum(record["target_forwards"] - 1 for record in records)
    return sum(record["tokens"] - 1 for record in records) / max(rounds, 1)


def commands_of(manifest: Line) -> list[Line]:
    """Return what run.json says of every command that filled a folder."""
    # settings that change the images are the same in all commands of a folder
    shared = ("settings", "identity", "earlier")
    last = {name: value for name, value in manifest.items() if name not in shared}
    last |= {name: manifest["settings"].get(name) for name in TIMED}
    return [*manifest["earlier"], last]


def files_of(folder: Path, name: str) -> list[Path]:
    """Return records.jsonl or trace.jsonl, if it exists, and the parts that processes wrote."""
    whole = [folder / name] if (folder / name).exists() else []
    return whole + files_named(folder, name.replace(".", rf"\.{RANK}\."))


def image_files(folder: Path) -> list[Path]:
    """Return the files of a run that have the names of images."""
    return files_named(folder / "img", IMAGE)


def image_path(folder: Path, name: str) -> Path:
    """Return where a run folder has an image."""
    return folder / "img" / f"{name}.png"


def read_manifest(folder: Path) -> Line:
    """Return run.json; a SettingsError if it is damaged or another program's."""
    path = folder / MANIFEST
    content = read_object(path)
    for name in ("settings", "identity"):
        if not isinstance(content.get(name), dict):
            raise mismatch(str(path), f"no {name}", "a file that generate_images wrote")
    earlier = content.get("earlier")
    if not isinstance(earlier, list) or not all(isinstance(command, dict) for command in earlier):
        raise mismatch(f"{path}: earlier", repr(earlier), "a list of commands")
    return content


def finished_records(folder: Path) -> tuple[dict[str, Line], set[str]]:
    """Return the finished images' records by id, and the ids whose files changed since."""
    records = {}
    for path in files_of(folder, RECORDS):
        for number, _, record in stream_lines(path):
            prompt, tau = record.get("prompt"), record.get("tau")
            if not isinstance(prompt, str) or not _is_figure(tau, False):
                refuse_line(path, number, f"a record with prompt {prompt!r}, tau {tau!r}")
            # A later line wins: its image was made again.
            records[record["id"]] = record
    finished = {name: record for name, record in records.items() if is_saved(folder, record)}
    gone = records.keys() - finished.keys()
    return finished, {name for name in gone if image_path(folder, name).is_file()}


def is_saved(folder: Path, record: Line) -> bool:
    """Return whether a record's image is the file that was saved with it."""
    path = image_path(folder, record["id"])
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    return digest is not None and digest == record.get("image_sha256")


def read_records(folder: Path) -> tuple[dict[str, Line], list[str]]:
    """Return the records that `evaluate` can use by id, and what is left out, in words.

    Left out are lines that are no records, records without a figure, and ids with different ones.
    """
    records: dict[str, Line] = {}
    faults: list[str] = []
    doubted: dict[str, str] = {}  # by id
    for path in files_of(folder, RECORDS):
        for number, record in scan_lines(path):
            if record is None:
                faults.append(f"{path.name}, line {number}: not a record")
                continue
            name = record["id"]
            if fault := record_fault(record):
                doubted[name] = f"{name}: a record {fault}"
                continue
            # twice the same tokens is one image: a kill while parts are joined leaves such pairs
            before = records.setdefault(name, record)
            if before["tokens_sha256"] != record["tokens_sha256"]:
                doubted[name] = f"{name}: an id with two different records"
    usable = {name: record for name, record in records.items() if name not in doubted}
    return usable, [*faults, *doubted.values()]


def record_fault(line: Line) -> str | None:
    """Return what a record lacks or has wrong, in words."""
    if missing := [field for field in (*_KINDS, *_FIGURES) if line.get(field) is None]:
        return f"without {', '.join(missing)}"
    wrong = [field for field, kind in _KINDS.items() if not isinstance(line[field], kind)]
    figures = (*_FIGURES, *(field for field in _SOMETIMES if field in line))
    wrong += [
        field for field in figures if not _is_figure(line[field], positive=field in _POSITIVE)
    ]
    return f"with {', '.join(f'{field} {line[field]!r}' for field in wrong)}" if wrong else None


def _is_figure(value: object, positive: bool) -> bool:
    # True is an int. NaN, which a damaged line may hold, fails every comparison below.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (value > 0 if positive else value >= 0) and value < _LARGEST
