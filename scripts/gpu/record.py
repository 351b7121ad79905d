"""The figures of a check: a line of JSON each, so that the same command continues."""

import gc
import sys
import time
import traceback
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

from configs.fields import SettingsError
from support.durable import append_lines
from support.json_files import read_lines
from support.output import printed_unless_saved
from support.provenance import cpu_name, revision
from support.tables import NONE, Table

Figures = dict[str, Any]


class Record:
    """The rows of a file, by name. What failed, was wrong or was skipped is measured again."""

    def __init__(self, path: Path, device: torch.device, **conditions: object):
        """Open the file, or begin it with the machine and the conditions of its figures."""
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        machine = {"gpu": gpu, "cpu": cpu_name(), "torch": torch.__version__} | conditions
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.rows = path, {row["id"]: row for row in read_lines(path)}
        before = self.rows.setdefault("machine", {"id": "machine"} | machine)
        if differing := [name for name in machine if before.get(name) != machine[name]]:
            raise SettingsError(
                f"{path}: expected figures of this machine and command, got another "
                f"{', '.join(differing)}; name a new folder, by OUT"
            )
        if not path.exists():
            append_lines(path, [before])

    def measure(self, name: str, figures: Callable[[], Figures]) -> None:
        """Add the row of a measurement that is still to be made; a fault becomes its row."""
        # A measurement that is not there is treated as one that failed.
        before = self.rows.get(name, {"error": "new"})
        if before.keys() & {"error", "skipped"} or before.get("wrong"):
            self.add(name, figures, {})

    def add(self, name: str, figures: Callable[[], Figures], before: Figures) -> None:
        """Write the figures, or the fault, and those from before as the row of this name.

        After a fault, the same command measures the whole row.
        """
        started = time.perf_counter()
        try:
            row = figures()
        except ValueError as error:  # a setting or a file that this machine cannot use
            row = {"skipped": str(error)}
        except Exception as error:
            traceback.print_exc()
            row = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the next measurement may need most of the GPU
        seconds = round(time.perf_counter() - started, 2)
        when = {"seconds": seconds, "date": date.today().isoformat(), "revision": revision()}
        # An extended row keeps the seconds, date and revision of its first figures.
        self.rows[name] = {"id": name} | row | when | before
        with printed_unless_saved(self.rows[name]):
            append_lines(self.path, [self.rows[name]])
        outcome = row.get("error") or row.get("skipped") or "done"
        print(f"{name}: {outcome} ({seconds} s)", file=sys.stderr, flush=True)

    def finish(self, title: str, columns: tuple[str, ...]) -> None:
        """Print the figures in Markdown; exit with code 1 if there is a fault among them."""
        machine, *rows = self.rows.values()
        print(f"\n## {title}\n")
        print(", ".join(f"{k} {v}" for k, v in machine.items() if k != "id" and v), end="\n\n")
        measured = [row for row in rows if columns[-1] in row]
        cells = [
            {name.replace("_", " "): _text(row.get(name)) for name in columns} for row in measured
        ]
        print(Table.of(cells).markdown())
        for row in rows:
            for kind in ("error", "wrong", "skipped"):
                if row.get(kind):
                    print(f"- {row['id']}: {kind}: {row[kind]}")
        if any(row.get("error") or row.get("wrong") for row in rows):
            sys.exit(1)


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(NONE if value is None else value)
