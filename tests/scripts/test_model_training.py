"""Training of the tiny transformer: optimiser, warm start, resumed runs."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small import OPTIONS, Sizes, write_checkpoint
from tiny_runs import assert_resumes, seconds_per_call, updates, write_split

from drafters.training.optimizers import Muon
from models.targets.chameleon import Chameleon
from scripts.tiny import train_model
from scripts.tiny.training import train_for
from support.json_files import numbered_lines

SIZES = Sizes(layers=1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint and a work folder with eight captions and random codes per split."""
    model, work = tmp_path_factory.mktemp("training") / "model", tmp_path_factory.mktemp("work")
    write_checkpoint(model, SIZES)
    for split in ("train", "validation"):
        codes = np.random.default_rng(0).integers(SIZES.codes, size=(8, SIZES.side**2))
        record = {"caption": "a dot", "background": {"kind": "plain", "colour": "red"}}
        write_split(work, split, [record | {"index": i} for i in range(8)], codes)
    return work, model


def model_run(folders) -> train_model.ModelRun:
    return train_model.ModelRun(*folders, 4, torch.device("cpu"))


def test_muon_solves_a_linear_regression() -> None:
    torch.manual_seed(0)
    wanted, inputs = torch.randn(8, 6), torch.randn(200, 6)
    weight = torch.zeros(8, 6, requires_grad=True)
    muon = Muon([weight], lr=1.0, momentum=0.9, weight_decay=0.0, precision=torch.float32)
    for step in range(200):
        muon.param_groups[0]["lr"] = 1 - step / 200
        weight.grad = None
        (inputs @ (weight - wanted).T).square().mean().backward()
        muon.step()
    assert (weight - wanted).abs().max() < 0.05


def test_naming_and_outlining_objects_is_learnt_beside_the_tokens(folders, tmp_path) -> None:
    run = model_run(folders)
    before = run.losses(run.train, 0, None, 1.0)
    updates(run, 30)
    after = run.losses(run.train, 0, None, 1.0)
    assert after["names"] < before["names"] - 0.5 and after["outlines"] < before["outlines"] - 2.0
    run.export(tmp_path)
    keys = load_file(tmp_path / "model.safetensors").keys()
    assert keys == load_file(folders[1] / "model.safetensors").keys(), "without the object heads"


def test_a_run_ends_with_its_budget_logs_and_continues(folders, tmp_path, monkeypatch) -> None:
    seconds_per_call(monkeypatch)
    first, second = model_run(folders), model_run(folders)
    train_for(0.5, first, tmp_path / "model.pt", None, 1e-3)
    assert (first.step, first.seconds) == (30, 30.0)
    train_for(1.0, second, tmp_path / "model.pt", str(tmp_path / "not read"), 1e-3)
    assert (second.step, second.seconds) == (60, 60.0)
    log = [line for _, line in numbered_lines(tmp_path / "train_model.jsonl", "step")]
    assert [entry["step"] for entry in log] == [25, 30, 50, 60]
    assert log[-1]["images"] == 240
    for name in ("tokens", "names", "outlines"):
        assert log[-1][f"validation_{name}"] < log[1][f"validation_{name}"]


def test_a_resumed_run_is_the_uninterrupted_one(folders, tmp_path) -> None:
    run = assert_resumes(lambda: model_run(folders), tmp_path / "run.pt")
    with pytest.raises(ValueError, match="earlier version"):
        run.load({"model": {}})


def test_photographs_train_the_tokens_alone_from_the_exported_weights(folders, tmp_path) -> None:
    work, model = folders
    for split in ("train", "validation"):
        codes = np.load(work / f"codes_{split}.npy")
        write_split(tmp_path, split, [{"index": 0, "caption": "a dog"}] * 8, codes)
    run = train_model.ModelRun(tmp_path, model, 4, torch.device("cpu"))
    run.start_from(model)
    weights = run.module.transformer.state_dict()
    for key, value in Chameleon().load(model, OPTIONS).transformer.state_dict().items():
        assert torch.equal(weights[key], value)
        assert torch.equal(run.average.values[f"transformer.{key}"], value)
    before = run.validate(2)
    updates(run, 20)
    assert list(before) == ["validation_tokens"]
    assert run.losses(run.train, 0, None, 1.0)["tokens"] < before["validation_tokens"] - 0.2
    with pytest.raises(ValueError, match="--start_from: expected images of pictures"):
        model_run(folders).start_from(model)
