"""`make demo`: what it says and draws, and that its figures of a GPU are those of docs/gpu.md."""

import re
import sys
from pathlib import Path

from browser import only_in_all
from PIL import Image
from ran import ran, without_progress

from configs.targets import ROOT
from scripts.demo import FAST, H100_MS, on_a_gpu


def test_milliseconds_are_those_of_the_page() -> None:
    lines = (ROOT / "docs/gpu.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    column = next(row for row in table if "H100: ms per round" in row).index("H100: ms per round")
    names = {"ar": "ar", FAST: f"configs/fast/{FAST}58.yaml"}
    for method, name in names.items():
        assert float(next(row for row in table if row[0] == name)[column]) == H100_MS[method]


def test_seconds_on_a_gpu_follow_from_the_passes() -> None:
    said = on_a_gpu({"ar": 1000, FAST: 100})
    assert f"{H100_MS['ar']:.1f} s by plain decoding, {H100_MS[FAST] / 10:.1f} s by {FAST}" in said


@only_in_all
def test_it_draws_both_methods_and_says_what_to_do_next(tmp_path: Path) -> None:
    done = ran([sys.executable, "-m", "scripts.demo", "--output", tmp_path], ROOT)
    assert done.returncode == 0, done.stderr
    passes = list(map(int, re.findall(r"(\d+) forward passes", done.stdout)))
    assert len(passes) == 4 and passes[0] == passes[2] == 256 and max(passes[1::2]) < 100
    assert done.stdout.count("the same image") == 2
    assert done.stdout.splitlines()[-1].startswith("Next: ")
    assert [Image.open(path).size for path in sorted(tmp_path.glob("*.png"))] == [(860, 404)] * 2
    assert without_progress(done.stderr).strip() == ""
