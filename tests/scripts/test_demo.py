"""`make demo`: pictures, a table, one line on what to do next, and nothing else on the screen."""

import os
import re
import subprocess
import sys
from pathlib import Path

from browser import only_in_all

from configs.method_table import METHODS
from configs.schema import ROOT

SCRIPT = ROOT / "scripts/demo.sh"


def test_its_fast_method_is_a_method() -> None:
    name = re.search(r"(?m)^FASTEST=(\w+)", SCRIPT.read_text(encoding="utf-8"))[1]
    assert METHODS[name].speculative


@only_in_all
def test_it_draws_and_says_what_to_do_next(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", SCRIPT],
        env=os.environ | {"PY": sys.executable, "OUT": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "grid.png").is_file() and (tmp_path / "benchmark.json").is_file()
    lines = done.stdout.splitlines()
    assert lines[-1].startswith(f"Next: open {tmp_path}/grid.png") and '"rows"' not in done.stdout
    assert sum(line.startswith("| ") for line in lines) == 2 + 3, "a table of three methods"
    bars = re.compile(r"\s*\d+%\|.*\|.*\[.*\]\s*|\d+/\d+ images, .*")  # of progress
    said = [text for text in re.split(r"[\r\n]", done.stderr) if text.strip()]
    assert [text for text in said if not bars.fullmatch(text)] == []
