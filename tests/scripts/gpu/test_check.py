"""The GPU check, small, on the CPU: every part, one JSON, and a second command that repeats
nothing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs.schema import ROOT
from scripts.gpu.options import PARTS

# Modules that may be missing on the machine that is to be checked.
ABSENT = ("fire", "diffusers", "open_clip", "torch_fidelity", "matplotlib", "jinja2")
HIDING = """
import importlib.machinery

find = importlib.machinery.PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {names} else find(name, path, target)


importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""


def check(checkpoint: Path, output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the shell script as a user would, on the small checkpoint."""
    words = ["--small", "--device", "cpu", "--model_path", checkpoint, "--output", output]
    return subprocess.run(
        ["bash", "scripts/gpu/check.sh", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"PY": sys.executable, "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole check, in an environment without packages that may be missing."""
    place = tmp_path_factory.mktemp("check")
    (place / "hiding").mkdir()
    (place / "hiding" / "sitecustomize.py").write_text(HIDING.format(names=ABSENT))
    hidden = {"PYTHONPATH": str(place / "hiding"), "XDG_CACHE_HOME": str(place)}
    done = check(checkpoint, place / "out", **hidden)
    assert done.returncode == 0, done.stderr
    for name in ABSENT:
        assert f"the package {name} is missing: without it, no " in done.stderr
    assert "| 7B: 64 tokens in passes of one |" in done.stdout
    return place / "out"


def pieces(folder: Path) -> dict[str, dict]:
    content = json.loads((folder / "check.json").read_text())
    return {piece["id"]: piece for piece in content["pieces"]}


def test_every_part_has_its_figures(folder: Path) -> None:
    content, found = json.loads((folder / "check.json").read_text()), pieces(folder)
    assert content["failed"] == [] and content["machine"]["device"] == "cpu"
    assert {piece["part"] for piece in found.values()} == set(PARTS)
    assert found["large: bound"]["bound_ms"] > 0
    assert found["large: 1 x 64 tokens"]["ms"]["eager"] > 0
    rounds = found["large: rounds of adt, batch 1"]
    assert rounds["ms_per_round"] > 0 and rounds["launches"] > 100 and rounds["peak"] > 2**20
    row = found["tiny: jacobi, batch 2"]
    assert row["identical"] == row["images"] == 2 and row["tau"] >= 1 and row["images_per_s"] > 0
    for name in found["profile: tiny adt"]["files"]:
        assert (folder / name).stat().st_size > 1000


def test_tokens_are_compared_for_every_method_and_type(folder: Path) -> None:
    found = {name: piece for name, piece in pieces(folder).items() if name.startswith("tokens: ")}
    for dtype in ("fp64", "fp32", "bf16"):
        rows = [row for name, row in found.items() if name.startswith(f"tokens: {dtype}")]
        judged = [row for row in rows if "skipped" not in row]
        assert len(judged) == 12 and all(row["passed"] for row in judged)
        assert len(rows) == 36  # twice more replayed, which a CPU cannot
    assert found["tokens: fp64 graft"]["identical"] == found["tokens: fp64 graft"]["images"]


def test_what_a_cpu_cannot_do_is_skipped_with_a_reason(folder: Path) -> None:
    skipped = json.loads((folder / "check.json").read_text())["skipped"]
    assert skipped["tokens: waits adt"] == "only a CUDA device reports its waits"
    assert skipped["large: rounds of adt, batch 1, replayed"] == "only a CUDA device has graphs"
    assert "--lantern_k" in skipped["tiny: lantern, batch 1"]


def test_aims_are_judged_where_they_were_measured(folder: Path) -> None:
    aims = {aim["name"]: aim for aim in json.loads((folder / "check.json").read_text())["aims"]}
    outcomes = {name: aim["outcome"] for name, aim in aims.items()}
    assert outcomes.pop("7B, rounds of ar: share of the host") == "not measured"  # on a CPU
    assert len(outcomes) == 4 and set(outcomes.values()) <= {"met", "missed"}


def test_a_second_command_repeats_nothing(folder: Path, checkpoint: Path) -> None:
    before = (folder / "check.jsonl").read_text().splitlines()
    done = check(checkpoint, folder)
    added = (folder / "check.jsonl").read_text().splitlines()[len(before) :]
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("done before") == len(before) - 1 - len(added)
    assert all("skipped" in json.loads(line) for line in added)
