"""The table of tau by the background in the tiny model's prompts."""

from __future__ import annotations

import numpy as np
import pytest
from made_runs import read_records, write_records, write_run

from eval.report.run import read_runs
from scripts.tiny import backgrounds

PROMPTS = [
    "a red circle on a plain blue background",
    "a red circle on a green striped backdrop",
    "a blue star on a plain red background",
]


def rounds(folder, *forwards: int) -> str:
    lines = [
        line | {"target_forwards": n}
        for line, n in zip(read_records(folder), forwards, strict=True)
    ]
    write_records(folder, lines)
    return str(folder)


def test_rows_by_background(tmp_path, capsys) -> None:
    images = [np.zeros((128, 128, 3), np.uint8)] * 3
    first = rounds(write_run(tmp_path / "adt", images, PROMPTS), 52, 256, 103)
    second = rounds(write_run(tmp_path / "graft", images, PROMPTS), 86, 86, 86)
    backgrounds.backgrounds(runs=f"{first},{second}")
    title, _, plain, striped, everything = capsys.readouterr().out.splitlines()
    assert title == "| background | images | adt | graft |"
    assert plain == f"| plain | 2 | {510 / (51 + 102):.2f} | 3.00 |"
    assert striped == "| striped | 1 | 1.00 | 3.00 |"
    assert everything == f"| all | 3 | {765 / (51 + 255 + 102):.2f} | 3.00 |"


def test_prompts_of_another_kind_are_refused(tmp_path) -> None:
    images = [np.zeros((128, 128, 3), np.uint8)]
    run = read_runs([str(write_run(tmp_path / "fox", images, ["a red fox in the snow"]))])[0]
    labels = backgrounds.AttributeClassifier.load(
        backgrounds.ROOT / "ckpts/tiny" / backgrounds.CLASSIFIER
    ).labels
    with pytest.raises(ValueError, match="a red fox in the snow"):
        backgrounds.table([run], labels)
