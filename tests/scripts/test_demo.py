"""`make demo`: pictures, a table, one line on what to do next, and nothing else on the screen."""

import os
import subprocess
import sys
from pathlib import Path

from browser import only_in_all
from said import without_progress

from configs.command_line import read_words
from configs.schema import ROOT
from runs.commands import tune_settings

SCRIPT = ROOT / "scripts/demo.sh"


def test_its_methods_are_exact_and_its_trials_take_at_most_twenty_seconds() -> None:
    text = SCRIPT.read_text(encoding="utf-8").replace("\\\n", " ")
    words = next(line for line in text.splitlines() if " main.py tune " in line).split()[3:]
    prompts = {"$PROMPTS": "a cat", '"$OUT/tuned.yaml"': "tuned.yaml"}
    texts = read_words("tune", [prompts.get(word, word) for word in words])
    settings = tune_settings(texts)
    assert len(settings.tried) == 4 and 60 * settings.minutes <= 20


@only_in_all
def test_it_draws_and_says_what_to_do_next(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", SCRIPT],
        env=os.environ | {"PY": sys.executable, "OUT": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "grid.png").is_file() and (tmp_path / "tuned.yaml").is_file()
    lines = done.stdout.splitlines()
    assert lines[-1].startswith(f"Next: open {tmp_path}/grid.png")
    assert sum(line.startswith("| ") for line in lines) >= 2 + 1, "a table that begins with ar"
    assert any("lain decoding" in line and not line.startswith("|") for line in lines)
    assert without_progress(done.stderr).strip() == ""
