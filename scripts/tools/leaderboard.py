"""Measure drafts for the leaderboard of docs/results/tokens.md, and write their rows there:

`python -m scripts.tools.leaderboard --methods eagle2 --drafter_path DRAFTER --name "my drafter"`

It runs `benchmark` with the included model on the 32 test prompts, at T = 1 and 0. The same command
continues where it stopped.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.benchmark import entries_of
from configs.fields import refuse
from eval.bench.bench import Row
from eval.bench.table import same_images
from scripts.tools.results_tables import DATA, results_tables
from support.durable import encode_json, replace_file
from support.json_files import read_object
from support.provenance import revision
from support.script import run_script

TABLE = DATA / "leaderboard.json", "included-model"
MEASURED = (
    "--prompt", "configs/prompts/tiny_test.txt", "--slice", "0-32", "--seed", "9",
    "--dtype", "fp32", "--repeats", "1", "--warmup", "0",
)  # fmt: skip


def leaderboard(
    *,
    methods: str,
    name: str = "",
    drafter_path: str = "",
    plugin: str = "",
    output: str = "outputs/leaderboard",
) -> None:
    """Measure methods and write a row for each; a row of the same method and name is replaced.

    Args:
        methods: as `benchmark` takes them, by commas; lossless ones, with 16 or 58 nodes.
        name: of the drafter, if it is not the included one.
        drafter_path: folder of the drafter; the included one by default.
        plugin: module of a method of your own.
        output: folder for the measurements.
    """
    given = {"drafter_path": drafter_path, "plugin": plugin}
    flags = [word for flag, text in given.items() if text for word in (f"--{flag}", text)]
    folder = Path(output) / (name.replace(" ", "_") or "included")
    found = []
    for temperature in ("1", "0"):
        place = folder / f"T{temperature}"
        command = [sys.executable, "main.py", "benchmark", *MEASURED, *flags]
        command += ["--temperature", temperature, "--methods", f"ar,{methods}"]
        if code := subprocess.run([*command, "--output_dir", str(place)], check=False).returncode:
            sys.exit(code)
        found.append(read_object(place / "benchmark.json"))
    warm, cold = found
    commit = revision() or "no git"
    commit = commit[:8] + ("+changes" if "+" in commit else "")
    rows = zip(entries_of(methods), warm["rows"][1:], cold["rows"][1:], strict=True)
    enter([[*entry(name, *row), cold["date"][:10], commit] for row in rows])


def entry(name: str, method: str, warm: Row, cold: Row) -> list[str]:
    """Return a row of the leaderboard from those of `benchmark` at T = 1 and 0."""
    if not warm["lossless"]:
        refuse("methods", method, "a lossless method: tau of a relaxed one is of other images")
    drafts = f"{name}: `{method}`" if name else f"`{method}`"
    nodes = warm.get("nodes") or warm.get("window") or round(warm["mean_nodes"])
    tau = [f"{row['tau']:.2f}" for row in (warm, cold)]
    return [drafts, str(nodes), *tau, same_images(warm), same_images(cold)]


def enter(rows: Sequence[list[str]]) -> None:
    """Write rows into the leaderboard's file and its page, the greatest tau of a budget first."""
    path, title = TABLE
    content = read_object(path)
    table = next(table for table in content["tables"] if table["title"] == title)
    kept = {row[0]: row for row in table["rows"]} | {row[0]: row for row in rows}
    table["rows"] = sorted(kept.values(), key=lambda row: (int(row[1]), -float(row[2])))
    table["date"] = max(row[-2] for row in table["rows"])
    replace_file(path, encode_json(content))
    results_tables()


if __name__ == "__main__":
    run_script(leaderboard)
