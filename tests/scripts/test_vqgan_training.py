"""Parts of the tokenizer's training and of the encoding step, on small arrays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import assert_resumes, seconds_per_call, write_split

from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import build_vqmodel, load_vqgan, save_vqgan
from scenes.painting import render_scene
from scenes.scene import sample_scene
from scripts.tiny import train_vqgan
from scripts.tiny.encode import encode
from scripts.tiny.train import train
from scripts.tiny.training import fast_precision
from support.json_files import numbered_lines


def write_images(folder: Path, split: str, images: np.ndarray) -> None:
    """Write pictures, which no scene describes."""
    records = [{"index": index, "caption": "x"} for index in range(len(images))]
    write_split(folder, split, records, images=images)


@pytest.mark.usefixtures("one_thread")  # as the processes of `encode`: codes in bf16 are near ties
def test_encoding_equals_the_tokenizer_and_happens_once(tmp_path: Path, monkeypatch) -> None:
    torch.manual_seed(0)
    config = replace(small_config(4), ch_mult=(1, 1), resolution=8)
    model = build_vqmodel(config)
    torch.nn.init.normal_(model.quantize.embedding.weight)
    save_vqgan(ImageTokenizer(model, config), tmp_path)
    images = np.random.default_rng(0).integers(256, size=(5, 8, 8, 3), dtype=np.uint8)
    write_images(tmp_path, "test", images)
    monkeypatch.setattr("scripts.tiny.encode._BATCH", 2)
    encode(work_dir=str(tmp_path), split="test", vqgan=str(tmp_path))
    codes = np.load(tmp_path / "codes_test.npy")
    precision = fast_precision(torch.device("cpu"))
    expected = load_vqgan(tmp_path).encode(torch.from_numpy(images), precision=precision)
    assert codes.dtype == np.uint16 and np.array_equal(codes, expected.numpy())
    encode(work_dir=str(tmp_path), split="test", vqgan=str(tmp_path / "not read"))


def small_config(channels: int = 8, codes: int = 16) -> VqganConfig:
    return VqganConfig(
        ch=4, ch_mult=(1, 1, 1, 1), num_res_blocks=1, num_groups=4, resolution=128,
        z_channels=channels, embed_dim=channels, n_embed=codes,
    )  # fmt: skip


@pytest.mark.usefixtures("one_thread")
def test_the_decoder_learns_alone(tmp_path: Path, monkeypatch) -> None:
    torch.manual_seed(0)
    model = build_vqmodel(small_config(codes=32))
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
    for minutes in (0.0, 0.4):
        folders = {"work_dir": str(tmp_path), "model_dir": str(tmp_path / "model")}
        train(network="decoder", minutes=minutes, batch_size=2, lr=3e-3, **folders)
    log = [line for _, line in numbered_lines(tmp_path / "train_decoder.jsonl", "step")]
    assert log[-1]["psnr"] > log[0]["psnr"] + 1
    last, images = load_vqgan(folder), torch.from_numpy(np.load(tmp_path / "images_train.npy"))
    assert torch.equal(first.encode(images), last.encode(images))
    errors = [(t.decode(t.encode(images)).float() - images).square().mean() for t in (first, last)]
    assert errors[1] < errors[0]


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(ValueError, match="--network: expected vqgan, .*, got 'gan'"):
        train(network="gan")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A work folder with four images of noise per split, which no scene describes."""
    for split in ("train", "validation"):
        images = np.random.default_rng(0).integers(256, size=(4, 128, 128, 3), dtype=np.uint8)
        write_images(tmp_path, split, images)
    return tmp_path


def small_run(folder: Path, monkeypatch, images: int = 2) -> train_vqgan.VqganRun:
    monkeypatch.setattr(train_vqgan, "TINY", small_config())
    return train_vqgan.VqganRun(folder, folder, images, torch.device("cpu"))


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
