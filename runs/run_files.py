"""The files of a run folder: what is damaged or another program's is named by file and line.

run.json        `read_manifest`
records.jsonl   `finished_records` for a run that continues; `read_records` for `evaluate`, which
                leaves out what it cannot use
trace.jsonl     `trace_lines`
img/<id>.png    `is_saved`

What older folders lack or say otherwise is understood here: records without `image_sha256`, and
`same_prompt`.
"""

import csv
import hashlib
import io
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from PIL import Image

from configs.fields import mismatch
from support.durable import encode_json, is_whole_png
from support.json_files import Line, numbered_lines, read_object, refuse_line, scan_lines
from support.provenance import revision, versions

MANIFEST, RECORDS, TRACE = "run.json", "records.jsonl", "trace.jsonl"
TOKENS = "tokens"  # what the entry `pixels` of a record says of a picture that shows only tokens
_KINDS = {"prompt": str, "seed": int, "tokens_sha256": str, "lossless": bool}
_LARGEST = 1e300  # also of whole numbers, which JSON bounds by nothing
_POSITIVE = ("tokens", "target_forwards", "seconds")
_FIGURES = (*_POSITIVE, "tau", "mean_depth", "mean_nodes")


def files_of(folder: Path, name: str) -> list[Path]:
    """Return records.jsonl or trace.jsonl, if it exists, and the parts that processes wrote."""
    parts = sorted(folder.glob(name.replace(".", ".*.")))
    return [path for path in (folder / name, *parts) if path.exists()]


def image_path(folder: Path, name: str) -> Path:
    return folder / "img" / f"{name}.png"


def encode_image(pixels: np.ndarray) -> bytes:
    """Return the PNG of an image's pixels, uint8 (height, width, 3)."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def read_manifest(folder: Path) -> Line:
    """Return run.json; a SettingsError if it is damaged or another program's."""
    path = folder / MANIFEST
    content = read_object(path)
    for name in ("settings", "identity"):
        if not isinstance(content.get(name), dict):
            raise mismatch(str(path), f"no {name}", "a file that generate_images wrote")
    earlier = content.setdefault("earlier", [])
    if not isinstance(earlier, list) or not all(isinstance(command, dict) for command in earlier):
        raise mismatch(f"{path}: earlier", repr(earlier), "a list of commands")
    return content


def new_manifest(command: Line, previous: Line | None) -> bytes:
    """Return run.json: what is known of this command, code and libraries, and earlier commands.

    previous: the run.json so far.
    """
    earlier: list[Line] = []
    if previous is not None:
        # settings that change the images are the same in all commands of a folder
        shared = ("settings", "identity", "earlier")
        last = {name: value for name, value in previous.items() if name not in shared}
        earlier = [*previous["earlier"], last]
    content = {
        **command,
        "versions": versions(),
        "revision": revision(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "earlier": earlier,
    }
    return encode_json(content, indent=2)


def finished_records(folder: Path) -> tuple[dict[str, Line], set[str]]:
    """Return the finished images' records by id, and the ids whose files changed since."""
    records = {}
    for path in files_of(folder, RECORDS):
        for number, record in numbered_lines(path):
            prompt, tau = record.get("prompt"), record.get("tau")
            if not isinstance(prompt, str) or not _is_figure(tau, False):
                refuse_line(path, number, f"a record with prompt {prompt!r}, tau {tau!r}")
            # A later line wins: its image was made again.
            records[record["id"]] = record
    finished = {name: record for name, record in records.items() if is_saved(folder, record)}
    gone = records.keys() - finished.keys()
    return finished, {name for name in gone if image_path(folder, name).is_file()}


def is_saved(folder: Path, record: Line) -> bool:
    """Return whether a record's image is the file that was saved with it.

    Records of older runs have no hash: there any whole PNG will do.
    """
    path, digest = image_path(folder, record["id"]), record.get("image_sha256")
    if digest is None or not path.is_file():
        return is_whole_png(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


def trace_lines(folder: Path) -> list[Line]:
    """Return the rounds in trace.jsonl; a SettingsError names a line that is none."""
    rounds = []
    for path in files_of(folder, TRACE):
        for number, entry in numbered_lines(path):
            if not isinstance(entry.get("round"), int):
                refuse_line(path, number, f"a round {entry.get('round')!r}")
            rounds.append(entry)
    return rounds


def same_prompt(record: Line, prompt: str) -> bool:
    """Return whether a record is of this prompt.

    Older runs read PartiPrompts as quoted CSV: quotes that a prompt begins with were lost.
    """
    if prompt.startswith('"') and record["prompt"] == next(csv.reader([prompt], delimiter="\t"))[0]:
        return True
    return record["prompt"] == prompt


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
            if fault := _faults(record):
                doubted[name] = f"{name}: a record {fault}"
                continue
            # twice the same tokens is one image: a kill while parts are joined leaves such pairs
            before = records.setdefault(name, record)
            if before["tokens_sha256"] != record["tokens_sha256"]:
                doubted[name] = f"{name}: an id with two different records"
    usable = {name: record for name, record in records.items() if name not in doubted}
    return usable, [*faults, *doubted.values()]


def _faults(line: Line) -> str | None:
    """Return what is wrong with a record, in words."""
    if missing := [field for field in (*_KINDS, *_FIGURES) if line.get(field) is None]:
        return f"without {', '.join(missing)}"
    wrong = [field for field, kind in _KINDS.items() if not isinstance(line[field], kind)]
    wrong += [
        field for field in _FIGURES if not _is_figure(line[field], positive=field in _POSITIVE)
    ]
    return f"with {', '.join(f'{field} {line[field]!r}' for field in wrong)}" if wrong else None


def _is_figure(value: object, positive: bool) -> bool:
    # True is an int. NaN, which a damaged line may hold, fails every comparison below.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (value > 0 if positive else value >= 0) and value < _LARGEST
