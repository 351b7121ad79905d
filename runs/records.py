"""records.jsonl of a run, as `evaluate` reads it: what cannot be used is named, the rest is kept."""

import math
from collections.abc import Sequence
from pathlib import Path

from runs.run_folder import Line, files_of
from support.json_files import scan_lines

_KINDS = {"prompt": str, "seed": int, "tokens_sha256": str, "lossless": bool}
_POSITIVE = ("tokens", "target_forwards", "seconds")
_FIGURES = (*_POSITIVE, "tau", "mean_depth", "mean_nodes")


def read_records(folder: Path) -> tuple[dict[str, Line], list[str]]:
    """The records of a run folder by id, and what is left out, in words."""
    lines, faults = _lines(folder)
    records, doubted = _unique(lines)
    return records, faults + doubted


def _lines(folder: Path) -> tuple[list[Line], list[str]]:
    """The records of a run, and what stands between them, in words."""
    numbered = [
        (path, *each) for path in files_of(folder, "records.jsonl") for each in scan_lines(path)
    ]
    faults = [
        f"{path.name}, line {number}: not a record"
        for path, number, line in numbered
        if line is None
    ]
    return [line for _, _, line in numbered if line is not None], faults


def _faults(line: Line) -> str | None:
    """What is wrong with a record, in words."""
    if missing := [field for field in (*_KINDS, *_FIGURES) if line.get(field) is None]:
        return f"without {', '.join(missing)}"
    wrong = [field for field, kind in _KINDS.items() if not isinstance(line[field], kind)]
    wrong += [
        field for field in _FIGURES if not _is_figure(line[field], positive=field in _POSITIVE)
    ]
    return f"with {', '.join(f'{field} {line[field]!r}' for field in wrong)}" if wrong else None


def _is_figure(value: object, positive: bool) -> bool:
    number = isinstance(value, int | float) and math.isfinite(value)
    return number and (value > 0 if positive else value >= 0)


def _unique(lines: Sequence[Line]) -> tuple[dict[str, Line], list[str]]:
    """The records by id; ids with different records and records that lack a figure are left out, and said so."""
    records: dict[str, Line] = {}
    doubted: dict[str, str] = {}
    for line in lines:
        if fault := _faults(line):
            doubted[line["id"]] = f"{line['id']}: a record {fault}"
            continue
        before = records.setdefault(line["id"], line)
        if before["tokens_sha256"] != line["tokens_sha256"]:
            doubted[line["id"]] = f"{line['id']}: an id with two different records"
    return {key: line for key, line in records.items() if key not in doubted}, list(
        doubted.values()
    )
