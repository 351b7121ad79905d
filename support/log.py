"""A log of JSON lines."""

import json
import time
from pathlib import Path
from typing import Any

from support.durable import append_bytes, encode_lines, replace_file
from support.json_files import numbered_lines


class JsonLog:
    """A file of JSON lines that grows; what is written is printed, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, **values: Any) -> None:
        """Add a line with the values and the time, in seconds since 1970."""
        text = json.dumps({"time": round(time.time(), 2), **values})
        print(text, flush=True)  # first, since a full disk may take the file but not the figures
        append_bytes(self.path, f"{text}\n".encode())

    def keep(self, step: int) -> None:
        """Drop the lines of later steps, which will be made again."""
        # NaN is kept: a loss that diverged is what the log is read for
        records = [record for _, record in numbered_lines(self.path, "step", finite=False)]
        kept = [record for record in records if record["step"] <= step]
        replace_file(self.path, encode_lines(kept, finite=False))
