"""Parts of the tokenizer's training and of the encoding step, on small arrays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import assert_resumes, seconds_per_call, write_split

from drafters.training.optimizers import cosine_lr
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_config import VqganConfig
from models.codecs.vqgan_files import load_vqgan
from models.codecs.vqgan_layout import build_vqmodel
from scenes.painting import render_scene
from scenes.scene import sample_scene
from scripts.tiny import train_vqgan
from scripts.tiny.encode import encode
from scripts.tiny.train import train
from scripts.tiny.train_vqgan import (
    REPLACED,
    EmaCodebook,
    kmeans,
    pixel_weights,
    psnr_figures,
    reconstruction_terms,
    replaced,
)
from scripts.tiny.training import fast_precision


def write_images(folder: Path, split: str, images: np.ndarray) -> None:
    """Write pictures, which no scene describes."""
    records = [{"index": index, "caption": "x"} for index in range(len(images))]
    write_split(folder, split, records, images=images)


def _clusters(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    centres = 10 * torch.eye(4)
    return centres, centres.repeat(50, 1) + 0.01 * torch.randn(200, 4, generator=generator)


def test_kmeans_finds_separate_clusters() -> None:
    generator = torch.Generator().manual_seed(1)
    centres, points = _clusters(generator)
    result = kmeans(points, 8, generator)
    assert float(torch.cdist(centres, result).min(1).values.max()) < 0.1


def test_codes_follow_their_latents_and_dead_codes_return() -> None:
    generator = torch.Generator().manual_seed(0)
    centres, points = _clusters(generator)
    codebook = EmaCodebook(5, 4, decay=0.9)
    codebook.start(torch.cat([centres + 0.5, torch.full((1, 4), 100.0)]))
    for _ in range(100):
        codebook.update(points, codebook.nearest(points))
    assert float((codebook.codes[:4] - centres).abs().max()) < 0.02
    assert codebook.revive(points, generator) == 1
    assert float(torch.cdist(codebook.codes[4:], points).min()) == 0.0


def test_loss_terms_vanish_for_equal_images_and_see_lost_grain() -> None:
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(2, 3, 32, 32, generator=generator) * 2 - 1
    weights = torch.ones(2, 1, 32, 32)
    equal = reconstruction_terms(images, images, weights)
    assert all(float(term) == 0.0 for term in equal.values())
    flat = images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    lost, shuffled = (reconstruction_terms(x, images, weights) for x in (flat, images.flip(3)))
    assert lost["texture"] > 4 * shuffled["texture"]


def test_objects_weigh_more_than_their_ground() -> None:
    scene = sample_scene("train", 0)
    weights = pixel_weights(scene)
    assert weights.shape == (128, 128)
    assert all(weights[item.y, item.x] > 1.0 for item in scene.objects)
    assert weights.min() <= 1.0


def test_pixels_of_photographs_weigh_alike() -> None:
    assert (pixel_weights(None) == 1.0).all()
    images = torch.zeros(2, 3, 8, 8)
    assert psnr_figures(images + 2 / 255, images, [None, None]) == {"psnr": 48.13}


def test_learning_rate_rises_then_falls() -> None:
    rates = [cosine_lr(share, 1.0, warmup=0.1) for share in (0.0, 0.05, 0.1, 0.5, 1.0, 2.0)]
    assert rates[0] < rates[1] < rates[2] == 1.0 > rates[3] > rates[4] == rates[5] > 0


@pytest.mark.usefixtures("one_thread")  # as the processes of `encode`: codes in bf16 are near ties
def test_encoding_continues_and_equals_the_tokenizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = replace(small_config(4), ch_mult=(1, 1), resolution=8)
    model = build_vqmodel(config)
    torch.nn.init.normal_(model.quantize.embedding.weight)
    ImageTokenizer(model, config).save(tmp_path)
    images = np.random.default_rng(0).integers(256, size=(5, 8, 8, 3), dtype=np.uint8)
    write_images(tmp_path, "test", images)
    np.save(tmp_path / "codes_test.npy", np.full((5, 16), 99, dtype=np.uint16))
    (tmp_path / "codes_test.done.json").write_text('{"images": 3}')
    encode(work_dir=str(tmp_path), split="test", vqgan=str(tmp_path), chunk=1)
    codes = np.load(tmp_path / "codes_test.npy")
    expected = load_vqgan(tmp_path).encode(
        torch.from_numpy(images), precision=fast_precision(torch.device("cpu"))
    )
    assert (codes[:3] == 99).all() and np.array_equal(codes[3:], expected[3:].numpy())


def test_codes_are_replaced_by_near_ones_in_half_of_the_images() -> None:
    near = np.array([[1], [0], [3], [2]])
    codes = np.random.default_rng(0).integers(4, size=(400, 256))
    result = replaced(codes, near, np.random.default_rng(1))
    changed = result != codes
    assert (result[changed] == near[codes[changed], 0]).all()
    assert 0.4 < changed.any(1).mean() < 0.6
    assert 0.8 * REPLACED / 4 < changed.mean() < 1.2 * REPLACED / 4


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
    ImageTokenizer(model, small_config(codes=32)).save(folder)
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
    log = [json.loads(text) for text in (tmp_path / "train_decoder.jsonl").read_text().splitlines()]
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


def test_the_codebook_starts_once_the_latents_are_formed(photographs, monkeypatch) -> None:
    run = small_run(photographs, monkeypatch, images=8)
    run.update(1e-3)
    assert not run.codebook.ready and run.validate(1)["codes_used"] == 0
    run.progress = 0.06
    run.update(1e-3)
    assert run.codebook.ready and run.validate(1)["codes_used"] > 1
    assert run.batch()[0].shape == (8, 3, 64, 64)
    run.progress = 0.8
    assert run.batch()[0].shape == (4, 3, 128, 128)


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
