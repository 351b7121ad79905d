"""Every command once in bf16, the type of all real checkpoints, on a model with row ends."""

from pathlib import Path

import pytest
from families import SMALL
from small import FLAGS

import main
from eval.bench import contest

MODEL = "lumina_mgpt"
BF16 = {"model": MODEL, "dtype": "bf16", "device": "cpu", **FLAGS[MODEL]}
SAMPLED = {"cfg": 2, "prompt": "prompts.txt"}
TRAINED = {"tokens": "tokens", "steps": 2, "batch_size": 2, "holdout": 2, "eval_images": 1}
# In this order, since later commands read what earlier ones wrote.
COMMANDS = {
    "inspect": {"drafter_path": "model/drafter"},
    "vq_distances": {},
    "extract_tokens": SAMPLED | {"from_prompts": True, "num_images": 6, "output_dir": "tokens"},
    "train_drafter": TRAINED | {"output_dir": "eagle"},
    "train_drafter block": TRAINED | {"drafter": "block", "output_dir": "block"},
    "train_drafter again": TRAINED | {"drafter": "block", "output_dir": "block"},
    "train_drafter cached": TRAINED | {"output_dir": "cached", "cache_features": "features"},
    "generate_images": SAMPLED | {"method": "ar", "output_dir": "ar", "num_images": 2},
    "generate_images adt": SAMPLED
    | {"method": "adt", "drafter_path": "eagle/drafter", "output_dir": "adt", "num_images": 2},
    "generate_images lantern": SAMPLED
    | {"method": "adt", "verifier": "lantern", "lantern_k": 3, "drafter_path": "eagle/drafter"}
    | {"output_dir": "lantern", "num_images": 1},
    "evaluate": {"output_dir": "ar,adt", "metrics": "none"},
    "benchmark": SAMPLED
    | {"methods": "ar,recall,block", "drafter_path": "block/drafter"}
    | {"num_images": 1, "repeats": 1, "warmup": 0},
    "tune": SAMPLED | {"drafter_path": "block/drafter", "methods": "block", "batch_sizes": "2"},
}
OF_A_MODEL = {"inspect", "vq_distances", "extract_tokens", "train_drafter", "generate_images"}
OF_A_MODEL |= {"benchmark", "tune"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in bf16, and prompts."""
    root = tmp_path_factory.mktemp("bf16")
    SMALL[MODEL].write(root).rename(root / "model")
    (root / "prompts.txt").write_text("".join(f"a cat {n}\n" for n in range(6)))
    return root


@pytest.mark.xdist_group("bf16")
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_works_in_bf16(name, folder, monkeypatch, capsys) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(contest, "MOST_TURNS", 1)  # of tune, whatever the machine does meanwhile
    command = name.split()[0]
    flags = {**BF16, "model_path": "model"} if command in OF_A_MODEL else {}
    if command == "vq_distances":
        flags = {"model": MODEL, "model_path": "model"}
    flags |= COMMANDS[name]
    words = [f"--{flag}" if value is True else f"--{flag}={value}" for flag, value in flags.items()]
    assert main.main([command, *words]) == 0, capsys.readouterr().err
