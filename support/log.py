"""A log of JSON lines."""

import json
import time
from pathlib import Path
from typing import Any

from support.durable import append_bytes, encode_lines, replace_file
from support.json_files import numbered_lines


class JsonLog:
    """A file of JSON lines that grows; what is written is printed, too.

    Args:
        path: the file. It and its folder are made if they are missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, **values: Any) -> None:
        """Add a line with the values and the time, in seconds since 1970."""
        line = json.dumps({"time": round(time.time(), 2), **values})
        print(line, flush=True)
        append_bytes(self.path, f"{line}\n".encode())

    def keep(self, step: int) -> None:
        """Drop the lines of later steps, which will be made again.

        Raises:
            SettingsError: a line has no `step`; names the file and the line.
        """
        lines = [line for _, line in numbered_lines(self.path, "step", finite=False)]
        kept = [line for line in lines if line["step"] <= step]
        replace_file(self.path, encode_lines(kept, finite=False))
