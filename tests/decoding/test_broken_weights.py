"""Weights that hold NaN or infinities: one line that names the flag and the folder, and exit code
1.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import main


@pytest.fixture(params=[torch.nan, torch.inf], ids=["NaN", "infinity"])
def value(request) -> float:
    return request.param


def spoil(file: Path, key: str, value: float) -> None:
    """Put a value into the first column of a weight."""
    weights = load_file(file)
    weights[key][..., 0] = value
    save_file(weights, file, {"format": "pt"})


@pytest.mark.parametrize(
    ("flag", "part", "key", "methods"),
    [
        ("model_path", "", "model.norm.weight", ("ar", "jacobi", "adt", "eagle_recall")),
        ("model_path", "", "lm_head.weight", ("ar",)),
        ("drafter_path", "drafter", "fc.weight", ("adt", "eagle2", "static", "eagle_recall")),
    ],
)
def test_broken_weights_are_named(
    checkpoint, tmp_path, monkeypatch, capsys, flag, part, key, methods, value
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    spoil(folder / part / "model.safetensors", key, value)
    for method in methods:
        words = ["generate_images", "--model_path", str(folder), "--method", method]
        words += (
            ["--drafter_path", str(folder / "drafter")] if method not in ("ar", "jacobi") else []
        )
        words += ["--prompt", "a cat", "--output_dir", str(tmp_path / method)]
        assert main.main([*words, "--device", "cpu"]) == 1, method
        lines = capsys.readouterr().err.splitlines()
        faults = [line for line in lines if line.startswith("error: ")]
        named = f"--{flag} {folder / part}: expected probabilities"
        assert len(faults) == 1 and named in faults[0], lines
