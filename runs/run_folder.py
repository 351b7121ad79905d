"""A run folder: images, records and settings, safe against a kill at any moment.

img/<id>.png    written under another name, then renamed
records.jsonl   a line per finished image, with the hash of its file; it counts only with that file
trace.jsonl     a line per round of the finished images, if asked for
run.json        settings, versions, hardware and revision of the latest command and earlier ones
.lock           held by the process that writes here; the kernel frees it when the process ends

Of several processes number n writes records.n.jsonl and trace.n.jsonl and holds .lock.n, the first
one .lock. The parts count like the whole files, and the first process joins them; after a kill the
next command does. Does not import torch.
"""

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from configs.fields import SettingsError, mismatch, settings_dict
from configs.schema import RunSettings
from runs.prompts import PromptItem
from runs.run_files import (
    MANIFEST,
    RECORDS,
    TRACE,
    encode_image,
    files_of,
    finished_records,
    image_path,
    new_manifest,
    read_manifest,
    same_prompt,
    trace_lines,
)
from support.durable import append_lines, encode_lines, lock, reason, replace_file
from support.json_files import Line
from support.processes import ALONE, Processes
from support.provenance import identity
from support.wording import differences, first_of

_IMAGE_NAME = re.compile(r"[0-9]{5,}_[0-9]+\.png")
# The ids in a file of records, which may be damaged elsewhere.
_RECORDED = re.compile(rb'^\{"id": "([^"/]+)"', re.MULTILINE)


class RunFolder:
    """An open run folder: `records` holds those of the finished images by id; `save` adds one."""

    def __init__(
        self,
        settings: RunSettings,
        arguments: Sequence[str] | None = None,
        processes: Processes = ALONE,
    ):
        """Name the folder, without opening it. arguments: of the command line, for run.json."""
        self.settings, self.processes = settings, processes
        self.path = Path(settings.output_dir)
        self.arguments = list(sys.argv if arguments is None else arguments)
        self.records: dict[str, Line] = {}
        self.changed: set[str] = set()  # ids whose files are not those that were saved

    def __enter__(self) -> Self:
        self._refuse_foreign()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.processes.rank == 0:
                # taking their locks proves that no process of an earlier run still writes
                for left in self.path.glob(".lock.*"):  # of a run whose first process is gone
                    lock(left).close()
                self._lock = lock(self.path / ".lock")
            # The others come later, since the first process takes their locks for a moment.
            self.processes.wait()
            if self.processes.rank > 0:
                self._lock = lock(self.path / f".lock.{self.processes.rank}")
        except BlockingIOError as error:
            raise self._error("another process at work in it", "one process per folder") from error
        except OSError as error:
            raise self._error(reason(error), "a writable folder") from error
        try:
            self._read()
        # Ctrl-C, too: Python does not call __exit__ when __enter__ raises.
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def check_prompts(self, items: Iterable[PromptItem]) -> None:
        """Raise a SettingsError if a finished image is of another prompt than its id now means."""
        for item in items:
            record = self.records.get(item.id)
            if record is not None and not same_prompt(record, item.prompt):
                raise self._error(
                    f"image {item.id} of prompt {record['prompt']!r}, which is now {item.prompt!r}",
                    "the same list of prompts, --overwrite or another folder",
                )

    def begin(self, hardware: Line) -> None:
        """Prepare for `save`: clear the folder if asked, write run.json, mend what a kill left."""
        self.processes.wait()  # everyone has read the folder
        if self.processes.rank == 0:
            self._begin(hardware)
        self.processes.wait()

    def finish(self) -> None:
        """Join the parts of several processes, after all of them have saved their last image."""
        self.processes.wait()
        if self.processes.rank == 0 and self._parts(RECORDS):
            self.records, _ = finished_records(self.path)
            with self._writing():
                self._join(trace_lines(self.path))

    def _begin(self, hardware: Line) -> None:
        manifest = {
            "settings": settings_dict(self.settings),
            "identity": self._identity,
            "hardware": hardware,
            "arguments": self.arguments,
            "processes": self.processes.count,
        }
        rounds = [] if self.settings.overwrite else trace_lines(self.path)  # damage stops it here
        with self._writing():
            if self.settings.overwrite:
                self._clear()
            # First: a folder with `img` but without run.json would be refused as foreign.
            replace_file(self.path / MANIFEST, new_manifest(manifest, self._previous))
            (self.path / "img").mkdir(exist_ok=True)
            for path in (self.path / "img").glob(".*.tmp"):
                path.unlink()
            self._join(rounds)

    def _join(self, rounds: Iterable[Line]) -> None:
        """Let records.jsonl and trace.jsonl hold the finished images, once; remove the parts."""
        self._rewrite(RECORDS, list(self.records.values()))
        # after a kill during this, rounds stand in a part and in the whole: they count once
        kept = {(r["id"], r["round"]): r for r in rounds if r["id"] in self.records}
        self._rewrite(TRACE, list(kept.values()))
        # Last, so that a kill at any point leaves every line in a part or in the whole.
        for path in (*self._parts(RECORDS), *self._parts(TRACE)):
            path.unlink()

    def save(self, pixels: np.ndarray, record: Line, trace: Sequence[Line] = ()) -> None:
        """Keep a finished image.

        pixels: uint8 (height, width, 3). record, trace: its lines of records.jsonl, with its `id`,
        and of trace.jsonl; the hash of the file is added.
        """
        content = encode_image(pixels)
        record = record | {"image_sha256": hashlib.sha256(content).hexdigest()}
        with self._writing():
            # the record last: after a kill before it, the image is made again
            replace_file(image_path(self.path, record["id"]), content)
            if trace:
                append_lines(self._own(TRACE), trace)
            append_lines(self._own(RECORDS), [record])
        self.records[record["id"]] = record

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            name = Path(error.filename or self.path).name
            raise self._error(
                f"{reason(error)} ({name})",
                "a folder with space to write; finished images are kept",
            ) from error

    def _read(self) -> None:
        """Read what the folder holds; nothing changes yet."""
        self._identity = identity(self.settings)
        there = (self.path / MANIFEST).exists()
        manifest = read_manifest(self.path) if there else None  # --overwrite spares a foreign one
        self._previous = None if self.settings.overwrite else manifest
        if self._previous is not None:
            self._refuse_other(self._previous["identity"])
            self.records, self.changed = finished_records(self.path)

    def _refuse_foreign(self) -> None:
        """Refuse, before anything is written, a folder with results but without a run.json."""
        ours = [name for name in ("img", RECORDS, TRACE) if (self.path / name).exists()]
        if ours and not (self.path / MANIFEST).exists():
            raise self._error(
                f"{', '.join(ours)} but no run.json", "a new folder, or one of an earlier run"
            )

    def _refuse_other(self, before: Line) -> None:
        there, now = (
            {f"--{name}": value for name, value in settings.items()}
            for settings in (before, self._identity)
        )
        if changes := differences(there, now):
            allowed = "the same settings, --overwrite or another folder"
            raise self._error(f"a run with other settings: {first_of(changes)}", allowed)

    def _clear(self) -> None:
        """Remove the images, records and trace of an earlier run, and nothing else."""
        files = [path for name in (RECORDS, TRACE) for path in files_of(self.path, name)]
        names = {
            f"{name.decode(errors='replace')}.png"
            for path in files
            for name in _RECORDED.findall(path.read_bytes())
        }
        for path in files:
            path.unlink()
        for path in (self.path / "img").glob("*.png"):
            # A kill between image and record leaves a picture that no record names.
            if path.name in names or _IMAGE_NAME.fullmatch(path.name):
                path.unlink()

    def _rewrite(self, name: str, lines: list[Line]) -> None:
        """Make the file hold exactly these lines, if it does not already."""
        path, content = self.path / name, encode_lines(lines)
        if (path.read_bytes() if path.exists() else b"") != content:
            replace_file(path, content)

    def _own(self, name: str) -> Path:
        """Return the file that this process adds lines to."""
        return (self.path / name).with_suffix(
            f".{self.processes.rank}.jsonl" if self.processes.count > 1 else ".jsonl"
        )

    def _parts(self, name: str) -> list[Path]:
        return [path for path in files_of(self.path, name) if path.name != name]

    def _error(self, got: str, allowed: str) -> SettingsError:
        return mismatch(f"--output_dir {self.path}", got, allowed)
