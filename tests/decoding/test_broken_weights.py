"""Weights with NaN or infinities: one line names flag and folder, and the exit code is 1."""

import shutil
from itertools import product
from pathlib import Path

import pytest
from browser import only_in_all
from safetensors.torch import load_file, save_file

import main

DRAFTED = ("adt", "eagle2", "static", "eagle_recall")
WEIGHTS = {  # name: flag, folder inside the model's, key, methods that read it
    "norm": ("model_path", "", "model.norm.weight", ("ar", "jacobi", "adt", "eagle_recall")),
    "output": ("model_path", "", "lm_head.weight", ("ar",)),
    "drafter": ("drafter_path", "drafter", "fc.weight", DRAFTED),
}
ALWAYS = {("norm", "nan", "adt"), ("output", "inf", "ar"), ("drafter", "nan", "eagle_recall")}
CASES = [
    pytest.param(*case, marks=() if case in ALWAYS else only_in_all)
    for weight, (_, _, _, methods) in WEIGHTS.items()
    for case in product([weight], ["nan", "inf"], methods)
]


@pytest.mark.parametrize(("weight", "value", "method"), CASES)
def test_broken_weights_are_named(checkpoint, tmp_path, capsys, weight, value, method) -> None:
    flag, part, key, _ = WEIGHTS[weight]
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    file = folder / part / "model.safetensors"
    weights = load_file(file)
    weights[key][..., 0] = float(value)
    save_file(weights, file, {"format": "pt"})
    words = ["generate_images", "--model_path", str(folder), "--method", method, "--device", "cpu"]
    words += [] if method in ("ar", "jacobi") else ["--drafter_path", str(folder / "drafter")]
    words += ["--prompt", "a cat", "--output_dir", str(tmp_path / "images")]
    assert main.main(words) == 1
    messages = capsys.readouterr().err.splitlines()
    errors = [message for message in messages if message.startswith("error: ")]
    named = f"--{flag} {folder / part}: expected probabilities"
    assert len(errors) == 1 and named in errors[0], messages
