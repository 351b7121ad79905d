"""Weights with NaN or infinities: one line names flag and folder, and the exit code is 1."""

from itertools import product

import pytest
from browser import only_in_all
from damage import generated, weights

DRAFTED = ("adt", "eagle2", "static", "eagle_recall")
WEIGHTS = {  # name: flag, folder inside the model's, key, methods that read it
    "norm": ("model_path", ".", "model.norm.weight", ("ar", "jacobi", "adt", "eagle_recall")),
    "output": ("model_path", ".", "lm_head.weight", ("ar",)),
    "drafter": ("drafter_path", "drafter", "fc.weight", DRAFTED),
}
ALWAYS = {("norm", "nan", "adt"), ("output", "inf", "ar"), ("drafter", "nan", "eagle_recall")}
CASES = [
    pytest.param(*case, marks=() if case in ALWAYS else only_in_all)
    for weight, (_, _, _, methods) in WEIGHTS.items()
    for case in product([weight], ["nan", "inf"], methods)
]


@pytest.mark.parametrize(("weight", "value", "method"), CASES)
def test_broken_weights_are_named(folder, capsys, weight, value, method) -> None:
    flag, part, key, _ = WEIGHTS[weight]
    file = f"{part}/model.safetensors"
    weights(lambda state: state[key][..., 0].fill_(float(value)), file)(folder)
    words = [] if method in ("ar", "jacobi") else [f"--drafter_path={folder / 'drafter'}"]
    code, said = generated(capsys, folder, f"--method={method}", "--device=cpu", *words)
    assert code == 1 and said.count("error: ") == 1
    assert f"error: --{flag} {folder / part}: expected probabilities" in said, said
