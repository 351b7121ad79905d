"""A log of JSON lines."""

import json
import time
from pathlib import Path
from typing import Any

from support.durable import replace_file


class JsonLog:
    """Append-only JSON-lines log; each line is flushed and also printed.

    Args:
        path: log file, created (with its folder) when missing, appended to otherwise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, **values: Any) -> None:
        """Append one line holding `values` and the wall-clock time in seconds since the epoch."""
        line = json.dumps({"time": round(time.time(), 2), **values})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def keep(self, step: int) -> None:
        """Drop the lines of later steps, which will be made again."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        replace_file(self.path, "".join(line + "\n" for line in kept).encode())
