"""The pieces of a check that are done: one line each in `check.jsonl`, so that it can continue."""

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from configs.fields import SettingsError
from support.durable import append_lines
from support.json_files import read_lines
from support.provenance import revision

Figures = dict[str, Any]
Pieces = Mapping[str, Callable[[], Figures]]  # by name; a piece returns its figures
MACHINE = "machine"


class Skipped(Exception):
    """A piece cannot be measured here; the message says why. The next command tries it again."""


class Record:
    """The lines of a check's file, by id. A piece that failed or was skipped is not done."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "check.jsonl"

    def lines(self) -> dict[str, Figures]:
        """Return the latest line of every id."""
        return {line["id"]: line for line in read_lines(self.path)}

    def add(self, name: str, figures: Figures) -> None:
        """Append a line."""
        append_lines(self.path, [{"id": name} | figures])

    def begin(self, machine: Figures) -> None:
        """Note the machine and the sizes on the first line.

        Raises:
            SettingsError: the file belongs to another machine or to other sizes.
        """
        found = self.lines().get(MACHINE)
        if found is None:
            self.add(MACHINE, machine)
        elif other := [name for name in machine if found.get(name) != machine[name]]:
            raise SettingsError(
                f"--output {self.path.parent}: found figures with another {', '.join(other)}; "
                "allowed: a new folder, or that of the same machine and sizes"
            )

    def run(self, part: str, pieces: Pieces) -> None:
        """Measure the pieces that are not done yet, each with a line of its own.

        A piece that fails is noted with its error, and the next one goes on: a check is there to
        find faults, all of them.
        """
        done = {
            name
            for name, line in self.lines().items()
            if "error" not in line and "skipped" not in line
        }
        for name, measure in pieces.items():
            if (key := f"{part}: {name}") in done:
                print(f"{key}: done before", file=sys.stderr, flush=True)
                continue
            started = time.perf_counter()
            figures = _outcome(measure)
            said = figures.get("error") or figures.get("skipped") or "done"
            seconds = time.perf_counter() - started
            print(f"{key}: {said} ({seconds:.1f} s)", file=sys.stderr, flush=True)
            when = {"date": date.today().isoformat(), "revision": revision()}
            self.add(key, {"part": part} | figures | when | {"seconds": round(seconds, 2)})


def _outcome(measure: Callable[[], Figures]) -> Figures:
    """Return a piece's figures; or why there are none, as `skipped` or `error`."""
    try:
        return measure()
    except Skipped as reason:
        return {"skipped": str(reason)}
    except Exception as error:
        traceback.print_exc()
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}
