"""Random checkpoints in the public layout, and timed forward passes."""

import json

import torch

import main
from models.base import TargetOptions
from models.registry import load_target
from scripts.tools.bench_forward import bench
from scripts.tools.random_checkpoint import vocabulary, write


def test_a_random_checkpoint_is_anoles_in_small_and_can_be_timed(tmp_path, capsys) -> None:
    folder = tmp_path / "random"
    write(output=str(folder), scale=32, layers=2)
    assert main.main(["inspect", "--model", "anole", "--model_path", str(folder)]) == 0
    target = load_target("anole", str(folder), TargetOptions(torch.float32, torch.device("cpu")))
    assert (target.grid.tokens, target.vocab.first_id, target.vocab.size) == (1024, 4, 8192)
    capsys.readouterr()
    bench(model="anole", model_path=str(folder), tokens=(1, 8), width=4, repeats=2)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["tokens"] for row in figures["rows"]] == [1, 8]
    weights = sum(p.nbytes for p in target.transformer.parameters()) - target.embedding().nbytes
    assert figures["weights"] == weights and figures["level_ms"] > 0 and figures["peak"] > weights
    assert all(row["of_bound"] == figures["bound_ms"] / row["ms"] for row in figures["rows"])


def test_its_names_have_chameleons_ids() -> None:
    ids = vocabulary()
    assert len(ids) == 65536 and sorted(ids.values()) == list(range(65536))
    known = {
        "<s>": 0,
        "<pad>": 1,
        "IMGIMGAZ": 4,
        "<eoss>": 8196,
        "<racm3:break>": 8197,
        "<reserved08706>": 8710,
    }
    assert {name: ids[name] for name in known} == known and ids["<reserved08799>"] == 8803
