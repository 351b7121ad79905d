"""`measurements.jsonl`: what was measured, so that no command measures it twice.

A line holds one method on one image or batch. Its `id` is a hash of its `conditions`: the settings,
the files by their content, the machine, the versions, the program, the images to make and the
methods that took turns on them. With other conditions it is another line, so one file serves any
number of commands. A turn counts only as a whole: the measurements that are compared were made next
to each other.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch

from configs.fields import SettingsError, mismatch, settings_dict
from configs.methods import MethodSettings
from configs.model import EngineSettings
from decoding.images import FinishedImage, Job
from eval.bench.table import words_of
from runs.conditions import conditions
from runs.made_of import files_now, refuse_changed
from runs.measure import Measurement
from support.durable import append_lines
from support.json_lines import mended_lines, read_lines, scan_lines
from support.output import printed_unless_saved
from support.provenance import program, revision

FILE = "measurements.jsonl"
_FREE = ("temperature", "top_k", "top_p", "program")  # conditions that seconds hardly depend on
Figures = dict[str, Any]
Turn = dict[MethodSettings, Measurement]


class Measurements:
    """The lines of a file; without a file, nothing is kept."""

    def __init__(self, path: Path | None, settings: EngineSettings, planned: bool = False):
        """Read a file.

        settings: of all measurements, apart from the method. planned: change nothing.
        """
        self.path, self.settings = path, settings
        read = read_lines if planned else mended_lines
        lines = [] if path is None else read(path)
        self.lines = {line["id"]: line for line in lines}  # a later line counts
        self.dates: set[str] = set()  # of the measurements that were made or found
        self._conditions: dict[MethodSettings, Figures] = {}
        # of the model, which is loaded after this; None: nothing is loaded, or nothing is kept
        self._files = None if path is None or planned else files_now(settings_dict(settings))

    def of(self, settings: EngineSettings) -> "Measurements":
        """Return the lines of the same file for other settings of the same loaded model."""
        other = Measurements(self.path, settings)
        other._files = self._files
        return other

    def find(self, conditions: Figures) -> Figures | None:
        """Return the line of what was measured under these conditions."""
        line = self.lines.get(_hash(conditions))
        if line is not None:
            self.dates.add(line["date"])
        return line

    def add(self, *measured: tuple[Figures, Figures]) -> None:
        """Append lines. measured: pairs of conditions and figures."""
        today = date.today().isoformat()
        self.dates.add(today)
        shared = {"date": today, "revision": revision()}
        lines = [
            {"id": _hash(conditions)} | shared | {"conditions": conditions} | figures
            for conditions, figures in measured
        ]
        self.lines |= {line["id"]: line for line in lines}
        if self.path is not None:
            with printed_unless_saved(*lines):
                append_lines(self.path, lines)

    def find_turn(
        self, methods: Sequence[MethodSettings], jobs: Sequence[Job], **others: object
    ) -> Turn | None:
        """Return a turn of methods on the same images; None unless all were measured.

        others: what else the turn depends on.
        """
        if not self.lines:
            return None
        kept = {
            method: self.find(given) for method, given in self._turn(methods, jobs, others).items()
        }
        lines = {method: line for method, line in kept.items() if line is not None}
        if len(lines) < len(kept):
            return None
        return {method: self._read(line, jobs) for method, line in lines.items()}

    def add_turn(
        self, turn: Turn, methods: Sequence[MethodSettings], jobs: Sequence[Job], **others: object
    ) -> None:
        """Keep a turn; arguments as of `find_turn`."""
        if self.path is None:
            self.dates.add(date.today().isoformat())
            return
        given = self._turn(methods, jobs, others)
        self.add(*((given[method], _figures(one)) for method, one in turn.items()))

    def seconds(self, method: MethodSettings) -> float | None:
        """Return the seconds per image of a method, whatever the sampling; None if not known here.

        They are those of this file and of files in the folders beside its own.
        """
        if self.path is None:
            return None
        try:
            given = {k: v for k, v in self.conditions(method).items() if k not in _FREE}.items()
        except SettingsError:  # a hub id whose files are not here
            return None
        files = self.path.absolute().parents[1].glob(f"*/{FILE}")
        lines = [line for path in files for _, line in scan_lines(path) if line is not None]
        measured = [line for line in lines if given <= (line.get("conditions") or {}).items()]
        seconds = [image["seconds"] for line in measured for image in line.get("images") or ()]
        return median(seconds) if seconds else None

    def conditions(self, method: MethodSettings) -> Figures:
        """Return what a method's measurements depend on, except images and turns."""
        if method not in self._conditions:
            drafter = self.settings.drafter_path if method.drafted else None
            run = replace(self.settings, method=method, drafter_path=drafter)
            given = conditions(run) | {"program": program()}
            if self._files is not None:
                refuse_changed(settings_dict(self.settings), self._files)
            self._conditions[method] = given
        return self._conditions[method]

    def _turn(
        self, methods: Sequence[MethodSettings], jobs: Sequence[Job], others: Figures
    ) -> dict[MethodSettings, Figures]:
        names = [words_of(method) for method in methods]
        shared = {"methods": names, "jobs": [asdict(job) for job in jobs], **others}
        return {method: self.conditions(method) | shared for method in methods}

    def _read(self, line: Figures, jobs: Sequence[Job]) -> Measurement:
        """Return the measurement on a line; a SettingsError if the line is damaged."""
        try:
            images = [
                FinishedImage(**image | {"job": job, "codes": torch.tensor(image["codes"])})
                for job, image in zip(jobs, line["images"], strict=True)
            ]
            spent, first = tuple(line["cpu_seconds"]), tuple(line["first_seconds"])
            return Measurement(images, line["seconds"], line["calls"], spent, first)
        except (KeyError, TypeError, ValueError) as error:
            got, advice = f"a damaged line ({error!r})", "Delete the file to start again."
            expected = "lines that this program wrote"
            raise mismatch(str(self.path), got, expected, advice) from error


def _figures(one: Measurement) -> Figures:
    """Return a measurement as the figures of a line; `Measurements._read` reads them."""
    images = [
        vars(image) | {"job": image.job.id, "codes": image.codes.tolist()} for image in one.images
    ]
    return vars(one) | {"images": images}


def _hash(conditions: Figures) -> str:
    return hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]
