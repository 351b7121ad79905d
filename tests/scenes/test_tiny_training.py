"""Trainings of the tiny model: its transformer, and its tokenizer with the encoding step."""

from pathlib import Path

import numpy as np
import pytest
import torch
from browser import only_in_all
from safetensors.torch import load_file
from tiny_runs import assert_resumes, seconds_per_call, updates, write_split

from drafters.training.optimizers import Muon
from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import load_vqgan, save_vqgan
from models.codecs.vqgan_network import Vqgan
from models.targets.chameleon import Chameleon
from scenes.painting import render_scene
from scenes.scene import sample_scene
from scenes.training import train_model, train_vqgan
from scenes.training.encode import encode
from scenes.training.train import TRAININGS, train
from scenes.training.training import fast_precision, train_for
from scripts.checkpoints.chameleon import Sizes, write_checkpoint
from scripts.checkpoints.parts import OPTIONS, write_vqgan
from support.json_lines import read_lines

SIZES, CPU = Sizes(layers=1), torch.device("cpu")


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
    return train_model.ModelRun(*folders, 4, CPU)


def test_muon_solves_a_linear_regression() -> None:
    torch.manual_seed(0)
    wanted, inputs = torch.randn(8, 6), torch.randn(200, 6)
    weight = torch.zeros(8, 6, requires_grad=True)
    muon = Muon([weight], torch.float32)
    for step in range(200):
        muon.param_groups[0] |= {"lr": 1 - step / 200, "momentum": 0.9, "weight_decay": 0.0}
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
    log = read_lines(tmp_path / "train_model.jsonl", "step")
    assert [entry["step"] for entry in log] == [25, 30, 50, 60]
    assert log[-1]["images"] == 240
    for name in ("tokens", "names", "outlines"):
        assert log[-1][f"validation_{name}"] < log[1][f"validation_{name}"]


def test_a_resumed_run_is_the_uninterrupted_one(folders, tmp_path) -> None:
    assert_resumes(lambda: model_run(folders), tmp_path / "run.pt")


def test_photographs_train_the_tokens_alone_from_the_exported_weights(folders, tmp_path) -> None:
    work, model = folders
    for split in ("train", "validation"):
        codes = np.load(work / f"codes_{split}.npy")
        write_split(tmp_path, split, [{"index": 0, "caption": "a dog"}] * 8, codes)
    run = train_model.ModelRun(tmp_path, model, 4, CPU)
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


def write_images(folder: Path, split: str, images: np.ndarray) -> None:
    """Write pictures, which no scene describes."""
    records = [{"index": index, "caption": "x"} for index in range(len(images))]
    write_split(folder, split, records, images=images)


def test_encoding_equals_the_tokenizer_and_happens_once(tmp_path: Path, monkeypatch) -> None:
    write_vqgan(tmp_path, SIZES.side, SIZES.codes)
    images = np.random.default_rng(0).integers(256, size=(5, 8, 8, 3), dtype=np.uint8)
    write_images(tmp_path, "test", images)
    monkeypatch.setattr("scenes.training.encode._BATCH", 2)
    encode(work_dir=str(tmp_path), split="test", vqgan=str(tmp_path))
    codes = np.load(tmp_path / "codes_test.npy")
    precision = fast_precision(CPU)
    expected = load_vqgan(tmp_path).encode(torch.from_numpy(images), precision=precision)
    assert len({*codes.flat}) > 2 and codes.dtype == np.uint16
    assert np.array_equal(codes, expected.numpy())
    encode(work_dir=str(tmp_path), split="test", vqgan=str(tmp_path / "not read"))


def small_config(codes: int = 16) -> VqganConfig:
    return VqganConfig(
        ch=4, ch_mult=(1, 1, 1, 1), num_res_blocks=1, num_groups=4, resolution=128,
        z_channels=8, embed_dim=8, n_embed=codes,
    )  # fmt: skip


@only_in_all  # five seconds
def test_the_decoder_learns_alone(tmp_path: Path, monkeypatch) -> None:
    torch.manual_seed(1)
    model = Vqgan(small_config(codes=32))
    torch.nn.init.normal_(model.quantize.embedding.weight)
    folder = tmp_path / "model" / "tokenizer"
    save_vqgan(ImageTokenizer(model, small_config(codes=32)), folder)
    first = load_vqgan(folder)
    for split in ("train", "validation"):
        scenes = [sample_scene(split, index) for index in range(2)]
        images = np.stack([render_scene(scene) for scene in scenes])
        records = [{"index": n, **scene.attributes()} for n, scene in enumerate(scenes)]
        codes = first.encode(torch.from_numpy(images)).numpy()
        write_split(tmp_path, split, records, codes, images)
    seconds_per_call(monkeypatch)
    monkeypatch.setitem(TRAININGS, "decoder", (train_vqgan.DecoderRun, 2, 3e-3))
    for minutes in (0.0, 0.4):
        folders = {"work_dir": str(tmp_path), "model_dir": str(tmp_path / "model")}
        train(network="decoder", minutes=minutes, **folders)
    log = read_lines(tmp_path / "train_decoder.jsonl", "step")
    assert log[-1]["psnr"] > log[0]["psnr"] + 1
    last, images = load_vqgan(folder), torch.from_numpy(np.load(tmp_path / "images_train.npy"))
    assert torch.equal(first.encode(images), last.encode(images))
    errors = [(t.decode(t.encode(images)).float() - images).square().mean() for t in (first, last)]
    assert errors[1] < errors[0]


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(ValueError, match="--network: expected vqgan, .*, got 'gan'"):
        train(network="gan", minutes=1.0)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A work folder with four images of noise per split, which no scene describes."""
    for split in ("train", "validation"):
        images = np.random.default_rng(0).integers(256, size=(4, 128, 128, 3), dtype=np.uint8)
        write_images(tmp_path, split, images)
    return tmp_path


def small_run(folder: Path, monkeypatch, images: int = 2) -> train_vqgan.VqganRun:
    monkeypatch.setattr(train_vqgan, "TINY", small_config())
    return train_vqgan.VqganRun(folder, folder, images, CPU)


def test_a_resumed_tokenizer_training_is_the_uninterrupted_one(photographs, monkeypatch) -> None:
    def opened() -> train_vqgan.VqganRun:
        run = small_run(photographs, monkeypatch)
        run.progress = 0.1  # the codebook has started
        return run

    assert_resumes(opened, photographs / "run.pt")


def test_a_tokenizer_training_starts_from_another_tokenizer(photographs, monkeypatch) -> None:
    other, run = small_run(photographs, monkeypatch), small_run(photographs, monkeypatch)
    other.codebook.start(torch.randn(16, 8))
    other.export(photographs / "other")
    run.start_from(photographs / "other")
    assert run.codebook.ready
    assert run.validate(1)["psnr"] == pytest.approx(other.validate(1)["psnr"], abs=0.1)  # in fp16
    with pytest.raises(ValueError, match="--start_from ckpts/tiny: expected a tokenizer of"):
        run.start_from(Path("ckpts/tiny"))
