"""Runs of the tiny domain, made without a model."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import scenes, write_run

COUNT = 24


@pytest.fixture(scope="module")
def drawn():
    return scenes(COUNT)


@pytest.fixture
def folders(tmp_path, drawn) -> tuple[Path, Path]:
    images, prompts = drawn
    plain = write_run(tmp_path / "ar", images, prompts)
    noisy = [np.clip(image.astype(int) + 3, 0, 255).astype(np.uint8) for image in images]
    relaxed = {"lossless": False, "seconds": 1.0, "tau": 2.0, "target_forwards": 128}
    other = write_run(
        tmp_path / "relaxed", noisy, prompts, {"method": "adt", "verifier": "lantern"}, **relaxed
    )
    rounds = {"id": "00000_0", "accepted": 2, "depth": 2, "top1": [0.5] * 3}
    lines = [rounds | {"round": n, "position": 1 + 3 * n} for n in range(85)]
    (other / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return plain, other
