"""A run folder: images, records and settings, safe against a kill at any moment.

img/<id>.png    written under another name, then renamed
records.jsonl   a line per finished image, with the hash of its file; it counts only with that file
trace.jsonl     a line per round of the finished images, if asked for
run.json        settings, versions, hardware and revision of the latest command and those before
.lock           held by the process that writes here; the kernel frees it when the process ends

Of several processes number n writes records.n.jsonl and trace.n.jsonl and holds .lock.n, the first
one .lock. The parts count like the whole files, and the first process joins them; after a kill the
next command does. Files of other names are the user's: nothing reads or removes them. Does not
import torch.
"""

import hashlib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from PIL import Image

from configs.fields import Flag, SettingsError, Values, mismatch
from decoding.seeds import image_seed
from runs.made_of import Files, Made, files_now, made_of, refuse_changed
from runs.prompts import PromptItem
from runs.records import (
    IMAGE,
    MANIFEST,
    RECORDS,
    TRACE,
    commands_of,
    files_of,
    finished_records,
    image_path,
    read_manifest,
)
from support.durable import (
    append_lines,
    encode_json,
    files_named,
    new_file,
    reason,
    remove_halves,
    replace_file,
)
from support.json_lines import Line, refuse_line, scan_texts, set_lines, stream_lines
from support.locks import lock, refuse_others
from support.processes import ALONE, Processes
from support.provenance import revision, versions
from support.wording import differences, first_of

_SAME_PROMPTS = "the same list of prompts, --overwrite or another folder"
_NUMBERED_IMAGE = r"([0-9]{5}|[1-9][0-9]{5,6})_[0-9]{1,5}\.png"  # a camera's have a date
# The id in a line of a file, which may be damaged elsewhere.
_RECORDED = re.compile(rb'\{"id": "([^"/]+)"')


class RunFolder:
    """An open run folder: `records` holds those of the finished images by id; `save` adds one."""

    def __init__(self, path: str, settings: Values, identity: Values, processes: Processes = ALONE):
        """Name the folder, without opening it.

        Args:
            path: the folder.
            settings: of the command, by flag.
            identity: of them what all images of a folder share.
            processes: that fill it together.
        """
        self.path, self.processes, self.settings = Path(path), processes, settings
        self._shared, self._overwrite = identity, settings["overwrite"]
        self.records: dict[str, Line] = {}
        self.changed: set[str] = set()  # ids whose files are not those that were saved

    def __enter__(self) -> Self:
        self._refuse_foreign()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.processes.rank == 0:
                refuse_others(self.path)  # of a run whose first process is gone
                self._lock = lock(self.path / ".lock")
            # The others come later, since the first process takes their locks for a moment.
            self.processes.wait()
            if self.processes.rank > 0:
                self._lock = lock(self.path / f".lock.{self.processes.rank}")
        except BlockingIOError as error:
            raise self._error("another process using it", "one process per folder") from error
        except OSError as error:
            raise self._error(reason(error), "a writable folder") from error
        try:
            self.processes.agree_on_folder("output_dir", str(self.path), self.path / ".lock")
            self._read()
            if self.processes.count > 1:  # each may have been started by hand
                for other in self.processes.gather(self._identity):
                    self._refuse_other(other)
        # Also Ctrl-C: Python does not call __exit__ when __enter__ raises.
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def check_prompts(self, prompts: Iterable[PromptItem]) -> None:
        """Raise a SettingsError unless the finished images are of these prompts and their seeds.

        prompts: the whole list, of which a command may have chosen some. Images of prompts that a
        user took out of it remain, but a folder of another list altogether is refused.
        """
        known = {item.name or format(item.number, "05d"): item for item in prompts}
        strange = None
        for name, record in self.records.items():
            of_prompt, _, sample = name.rpartition("_")
            item = known.get(of_prompt)
            if item is None:
                strange = strange or record
                continue
            if record["prompt"] != item.prompt:
                raise self._error(
                    f"image {name} of prompt {record['prompt']!r}, which is now {item.prompt!r}",
                    _SAME_PROMPTS,
                )
            seed = image_seed(self.settings["seed"], item.prompt, item.occurrence, int(sample))
            if record.get("seed", seed) != seed:
                why = "an equal prompt before it was added or removed"
                raise self._error(f"image {name} of another seed, since {why}", _SAME_PROMPTS)
        if strange is not None and not any(n.rpartition("_")[0] in known for n in self.records):
            got = f"images of another list, such as {strange['id']} of {strange['prompt']!r}"
            raise self._error(got, _SAME_PROMPTS)

    def begin(self, hardware: Line) -> None:
        """Prepare for `save`: clear the folder if asked, write run.json, mend what a kill left.

        A SettingsError if one of `files` has changed meanwhile.
        """
        refuse_changed(self.settings, self.files)
        self.processes.wait()  # everyone has read the folder
        if self.processes.rank == 0:
            self._begin(hardware)
        self.processes.wait()

    def finish(self) -> None:
        """Join the parts of several processes, after all of them have saved their last image."""
        self.processes.wait()
        if self.processes.rank == 0 and self._parts(RECORDS):
            self.records, _ = finished_records(self.path)
            size = sum(map(len, self._rounds()))
            with self._writing():
                self._join(size)

    def _begin(self, hardware: Line) -> None:
        earlier: list[Line] = []
        if self._previous is not None and self.records:  # or no image is of an earlier command
            earlier = commands_of(self._previous)
        manifest = {
            "settings": self.settings,
            "identity": self._identity,
            "commits": self._made.commits,
            "hardware": hardware,
            "arguments": sys.argv,
            "processes": self.processes.count,
            "versions": versions(),
            "revision": revision(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "earlier": earlier,
        }
        # damage stops it here
        size = 0 if self._overwrite else sum(map(len, self._rounds()))
        with self._writing():
            if self._overwrite:
                self._clear()
            # First: a folder with `img` but without run.json would be refused as foreign.
            replace_file(self.path / MANIFEST, encode_json(manifest, indent=2))
            (self.path / "img").mkdir(exist_ok=True)
            remove_halves(self.path / "img", IMAGE)
            remove_halves(self.path, r"run\.json|(records|trace)\.jsonl")
            self._join(size)

    def _rounds(self) -> Iterator[bytes]:
        """Yield the finished images' lines of the trace; a SettingsError names one that is none."""
        # by id: after a kill during `_join`, rounds stand in a part and in the whole
        sources: dict[str, Path] = {}
        for path in files_of(self.path, TRACE):
            for number, text, entry in stream_lines(path):
                if not isinstance(entry.get("round"), int):
                    refuse_line(path, number, f"a round {entry.get('round')!r}")
                name = entry["id"]
                if name in self.records and sources.setdefault(name, path) == path:
                    yield text.removesuffix(b"\n") + b"\n"

    def _join(self, size: int) -> None:
        """Let records.jsonl and trace.jsonl hold the finished images, once; remove the parts.

        size: of all `_rounds`, in bytes.
        """
        set_lines(self.path / RECORDS, list(self.records.values()))
        trace = self.path / TRACE
        if self._parts(TRACE) or size != (trace.stat().st_size if trace.exists() else 0):
            with new_file(trace) as file:
                file.writelines(self._rounds())
        # Last, so that a kill at any point leaves every line in a part or in the whole.
        for path in (*self._parts(RECORDS), *self._parts(TRACE)):
            path.unlink()

    def save(self, pixels: np.ndarray, record: Line, trace: Sequence[Line] = ()) -> None:
        """Keep a finished image.

        pixels: uint8 (height, width, 3). record, trace: its lines of records.jsonl, with its `id`,
        and of trace.jsonl; the hash of the file is added.
        """
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="PNG")
        content = buffer.getvalue()
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
            # the same command would delete them
            without = ", continue without --overwrite" if self._overwrite else ""
            raise self._error(
                f"{reason(error)} ({name})",
                f"a folder with space to write; finished images are kept{without}",
            ) from error

    def _read(self) -> None:
        """Read what the folder holds; nothing changes yet."""
        there = (self.path / MANIFEST).exists()
        manifest = read_manifest(self.path) if there else None  # --overwrite spares a foreign one
        self._previous = None if self._overwrite else manifest
        if self._previous is not None:
            self._refuse_other(self._previous["identity"])
            self.records, self.changed = finished_records(self.path)

    @property
    def _identity(self) -> Line:
        """The settings that all images share, and the content of the files that they name."""
        return self._shared | self._made.files

    @cached_property
    def files(self) -> Files:
        """The model's files, noted when they are asked for: before anything reads them."""
        return files_now(self.settings)

    @cached_property
    def _made(self) -> Made:
        """What the settings name."""
        # a new folder needs it once the model is loaded, when its files are read anyway
        _ = self.files
        return made_of(self._shared)

    def _refuse_foreign(self) -> None:
        """Refuse, before anything is written, a folder with results but without a run.json."""
        ours = [name for name in ("img", RECORDS, TRACE) if (self.path / name).exists()]
        if ours and not (self.path / MANIFEST).exists():
            raise self._error(
                f"{', '.join(ours)} but no run.json", "a new folder, or one of an earlier run"
            )

    def _refuse_other(self, before: Line) -> None:
        # another device may round differently, as --compile may
        there = before | {"device": self._identity["device"]}
        if changes := differences(there, self._identity):
            allowed = "the same settings, --overwrite or another folder"
            raise self._error(f"a run with other settings: {first_of(changes)}", allowed)

    def _clear(self) -> None:
        """Remove the images, records and trace of an earlier run, and nothing else."""
        files = [path for name in (RECORDS, TRACE) for path in files_of(self.path, name)]
        names = {
            f"{found[1].decode(errors='replace')}.png"
            for path in files
            for _, text in scan_texts(path)
            if (found := _RECORDED.match(text))
        }
        for path in files:
            path.unlink()
        for path in files_named(self.path / "img", IMAGE):
            # A kill between image and record leaves a picture that no record names.
            if path.name in names or re.fullmatch(_NUMBERED_IMAGE, path.name):
                path.unlink()

    def _own(self, name: str) -> Path:
        """Return the file that this process adds lines to."""
        return (self.path / name).with_suffix(
            f".{self.processes.rank}.jsonl" if self.processes.count > 1 else ".jsonl"
        )

    def _parts(self, name: str) -> list[Path]:
        return [path for path in files_of(self.path, name) if path.name != name]

    def _error(self, got: str, allowed: str) -> SettingsError:
        return mismatch(Flag("output_dir", self.path), got, allowed)
