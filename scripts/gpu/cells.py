"""The table of a check: a cell that fails is named, and the check goes on."""

import gc
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from support.tables import NONE, Table

Figures = dict[str, Any]


class Cells:
    """The figures of a check by the names of its cells."""

    def __init__(self) -> None:
        self.rows: dict[str, Figures] = {}

    def add(self, name: str, figures: Callable[[], Figures]) -> None:
        """Add figures to a cell, or why there are none.

        A ValueError is a setting or a file that this machine cannot use: it skips the cell.
        """
        started = time.perf_counter()
        try:
            row = figures()
        except ValueError as error:
            row = {"skipped": str(error)}
        except Exception as error:
            traceback.print_exc()
            row = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the next measurement may need most of the GPU
        self.rows[name] = self.rows.get(name, {"id": name}) | row
        outcome = row.get("error") or row.get("skipped") or "done"
        seconds = time.perf_counter() - started
        print(f"{name}: {outcome} ({seconds:.2f} s)", file=sys.stderr, flush=True)

    def finish(self, title: str, columns: tuple[str, ...]) -> None:
        """Print the figures in Markdown; exit with code 1 if a cell failed or is wrong."""
        measured = [row for row in self.rows.values() if columns[-1] in row]
        cells = [
            {name.replace("_", " "): _text(row.get(name)) for name in columns} for row in measured
        ]
        print(f"\n## {title}\n\n{Table.of(cells).markdown()}")
        faults = [
            (row, kind) for row in self.rows.values() for kind in ("error", "wrong", "skipped")
        ]
        for row, kind in faults:
            if row.get(kind):
                print(f"- {row['id']}: {kind}: {row[kind]}")
        if any(row.get(kind) for row, kind in faults if kind != "skipped"):
            sys.exit(1)


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(NONE if value is None else value)
