"""A run folder: images, records and settings, safe against a kill at any moment; does not import torch.

img/<id>.png    written beside its place, then moved there
records.jsonl   a line per finished image; it counts only together with a whole image file
trace.jsonl     a line per round of the finished images, if asked for
run.json        settings, versions, hardware and revision of the latest command, and of those before it
.lock           held by the process that writes here; the kernel frees it when the process ends

Of several processes number n writes records.n.jsonl and trace.n.jsonl and holds .lock.n, the first one .lock. The parts
count like the whole files, and the first process joins them; after a kill the next command does.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from PIL import Image

from configs.fields import SettingsError, settings_dict
from configs.schema import RunSettings
from runs.prompts import PromptItem
from support.durable import (
    append_lines,
    encode_lines,
    flush_to_disk,
    is_whole_png,
    lock,
    replace_file,
)
from support.json_files import read_lines
from support.processes import ALONE, Processes
from support.provenance import identity, revision, versions

Line = dict[str, Any]
_IMAGE_NAME = re.compile(r"[0-9]{5,}_[0-9]+\.png")
_RECORDED = re.compile(
    rb'^\{"id": "([^"/]+)"', re.MULTILINE
)  # ids, also in a file that is damaged elsewhere


class RunFolder:
    """An open run folder: `records` by id of the images that are finished; `save` adds one.

    Raises SettingsError if the folder is in use, is not a run's, or holds a run of other settings.
    """

    def __init__(
        self,
        settings: RunSettings,
        arguments: Sequence[str] | None = None,
        processes: Processes = ALONE,
    ):
        """arguments: the words of the command line, for run.json; processes: that fill the folder together."""
        self.settings, self.processes = settings, processes
        self.path = Path(settings.output_dir)
        self.arguments = list(sys.argv if arguments is None else arguments)
        self.records: dict[str, Line] = {}

    def __enter__(self) -> Self:
        self._refuse_foreign()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.processes.rank == 0:
                for left in self.path.glob(".lock.*"):  # of a run whose first process is gone
                    lock(left).close()
                self._lock = lock(self.path / ".lock")
            self.processes.gather(None)
            if self.processes.rank > 0:
                self._lock = lock(self.path / f".lock.{self.processes.rank}")
        except BlockingIOError as error:
            raise self._error(
                "found another process at work in it", "one process per folder"
            ) from error
        except OSError as error:
            raise self._error(f"found {error}", "a folder that can be written") from error
        try:
            self._read()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.close()

    def check_prompts(self, items: Iterable[PromptItem]) -> None:
        """A SettingsError if a finished image was made of another prompt than now stands at its place."""
        for item in items:
            record = self.records.get(item.id)
            if record is not None and record["prompt"] != item.prompt:
                found = (
                    f"image {item.id} of prompt {record['prompt']!r}, which is now {item.prompt!r}"
                )
                raise self._error(
                    f"found {found}", "the same list of prompts, --overwrite or another folder"
                )

    def begin(self, hardware: Line) -> None:
        """Make the folder ready for `save`: clear it if asked to, write run.json, mend what a kill left."""
        self.processes.gather(None)  # everyone has read the folder
        if self.processes.rank == 0:
            self._begin(hardware)
        self.processes.gather(None)

    def finish(self) -> None:
        """Join the parts of several processes, after all of them have saved their last image."""
        self.processes.gather(None)
        if self.processes.rank == 0 and self._parts("records.jsonl"):
            self.records = self._whole_images()
            with self._writing():
                self._join()

    def _begin(self, hardware: Line) -> None:
        manifest = {
            "settings": settings_dict(self.settings),
            "identity": self._identity,
            "versions": versions(),
            "hardware": hardware,
            "revision": revision(),
            "arguments": self.arguments,
            "processes": self.processes.count,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "earlier": _history(self._previous),
        }
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        with self._writing():
            if self.settings.overwrite:
                self._clear()
            replace_file(self.path / "run.json", text.encode())
            (self.path / "img").mkdir(exist_ok=True)
            for path in (self.path / "img").glob(".*.png.tmp"):
                path.unlink()
            self._join()

    def _join(self) -> None:
        """Make records.jsonl and trace.jsonl hold what belongs to whole images, once, and remove their parts."""
        self._rewrite("records.jsonl", list(self.records.values()))
        lines = (line for line in self._lines("trace.jsonl") if line["id"] in self.records)
        self._rewrite(
            "trace.jsonl", list({(line["id"], line["round"]): line for line in lines}.values())
        )
        for path in (*self._parts("records.jsonl"), *self._parts("trace.jsonl")):
            path.unlink()

    def save(self, pixels: np.ndarray, record: Line, trace: Sequence[Line] = ()) -> None:
        """Keep a finished image: pixels uint8 (height, width, 3), record with `id`, lines of the trace."""
        name = record["id"]
        hidden = self.path / "img" / f".{name}.png.tmp"
        with self._writing():
            with hidden.open("wb") as file:
                Image.fromarray(pixels).save(file, format="PNG")
                flush_to_disk(file)
            os.replace(hidden, self._image(name))
            if trace:
                append_lines(self._own("trace.jsonl"), trace)
            append_lines(self._own("records.jsonl"), [record])
        self.records[name] = record

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(
                f"found {error}", "a folder with space to write; finished images are kept"
            ) from error

    def _read(self) -> None:
        """Read what is there; nothing changes yet."""
        self._identity = identity(self.settings)
        self._previous = None if self.settings.overwrite else self._manifest()
        if self._previous is not None:
            self._refuse_other(self._previous["identity"])
            self.records = self._whole_images()

    def _whole_images(self) -> dict[str, Line]:
        return {
            line["id"]: line
            for line in self._lines("records.jsonl")
            if is_whole_png(self._image(line["id"]))
        }

    def _refuse_foreign(self) -> None:
        """A SettingsError, before anything is written, for a folder with results but without a run.json."""
        ours = [
            name for name in ("img", "records.jsonl", "trace.jsonl") if (self.path / name).exists()
        ]
        if ours and not (self.path / "run.json").exists():
            raise self._error(
                f"found {', '.join(ours)} but no run.json", "a new folder, or one of an earlier run"
            )

    def _manifest(self) -> Line | None:
        path = self.path / "run.json"
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text("utf-8"))
            content["identity"].items()
            return content
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._error("found a run.json that cannot be read", "another folder") from error

    def _refuse_other(self, before: Line) -> None:
        now = self._identity
        names = [name for name in sorted(before | now) if before.get(name) != now.get(name)]
        if names:
            changes = ", ".join(
                f"--{name} {before.get(name)!r} (now {now.get(name)!r})" for name in names
            )
            raise self._error(
                f"found a run with {changes}", "the same settings, --overwrite or another folder"
            )

    def _clear(self) -> None:
        """Remove the images, records and trace of an earlier run, and nothing else."""
        files = [
            path for name in ("records.jsonl", "trace.jsonl") for path in files_of(self.path, name)
        ]
        names = {
            f"{name.decode()}.png"
            for path in files
            for name in _RECORDED.findall(path.read_bytes())
        }
        for path in files:
            path.unlink()
        for path in (self.path / "img").glob("*.png"):
            if path.name in names or _IMAGE_NAME.fullmatch(path.name):
                path.unlink()

    def _lines(self, name: str) -> list[Line]:
        return [line for path in files_of(self.path, name) for line in read_lines(path)]

    def _rewrite(self, name: str, lines: list[Line]) -> None:
        """Make the file hold exactly these lines, if it does not already."""
        path, content = self.path / name, encode_lines(lines)
        if (path.read_bytes() if path.exists() else b"") != content:
            replace_file(path, content)

    def _own(self, name: str) -> Path:
        """The file that this process adds lines to."""
        return (self.path / name).with_suffix(
            f".{self.processes.rank}.jsonl" if self.processes.count > 1 else ".jsonl"
        )

    def _parts(self, name: str) -> list[Path]:
        return [path for path in files_of(self.path, name) if path.name != name]

    def _image(self, name: str) -> Path:
        return self.path / "img" / f"{name}.png"

    def _error(self, found: str, allowed: str) -> SettingsError:
        return SettingsError(f"--output_dir {self.path}: {found}; allowed: {allowed}")


def files_of(folder: Path, name: str) -> list[Path]:
    """records.jsonl or trace.jsonl of a run folder, if it is there, and the parts of it that processes have written."""
    parts = sorted(folder.glob(name.replace(".", ".*.")))
    return [path for path in (folder / name, *parts) if path.exists()]


def _history(previous: Line | None) -> list[Line]:
    """The earlier commands of a folder, without what they share with the latest."""
    if previous is None:
        return []
    last = {
        name: value
        for name, value in previous.items()
        if name not in ("settings", "identity", "earlier")
    }
    return [*previous.get("earlier", []), last]
