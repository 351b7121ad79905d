"""Lumina-mGPT: sizes and ends of rows."""

import pytest
import torch
from fakes import finished
from families import assert_chosen
from small import open_lumina

from configs.model import EngineSettings
from configs.schema import MethodSettings
from configs.targets import TARGETS, parse_size
from decoding.images import Job

JOBS = [Job("a", "a cat", 11), Job("b", "two large dogs", 12), Job("c", "fog", 13)]


# 4 x 4, 4 rows of 6 and 6 rows of 2 image tokens
@pytest.mark.parametrize("size", ["64", "96x64", "32x96"])
def test_every_code_is_chosen_by_an_uncached_pass(size, lumina_folder) -> None:
    engine = open_lumina(lumina_folder, size).open_engine(MethodSettings("ar"))
    images = finished(engine, JOBS)
    for image in images.values():
        assert_chosen(engine, image)
    assert len({tuple(image.codes.tolist()) for image in images.values()}) == 3


def test_trees_run_on_across_row_ends(lumina_folder) -> None:
    """Where rows hold two tokens, a round that accepts two has crossed an end."""
    session = open_lumina(lumina_folder, "32x96")
    engine = session.open_engine(MethodSettings("eagle2", depth=7, width=3, nodes=12))
    accepted = [stats.accepted for step in engine.generate(JOBS) for stats in step.rounds]
    assert max(accepted) >= 2


def test_images_are_of_the_size(lumina_folder) -> None:
    """Prompts name width and height in words, and rows before columns by two tokens."""
    target = open_lumina(lumina_folder, "96x64").target
    words, ids = target.prompts.words, target.prompt("a cat", 1).ids[0].tolist()
    assert "an image of 96x64 acc" in words.tokenizer.decode(ids, skip_special_tokens=False)
    assert ids[-2:] == [words["<reserved08802>"], words["<reserved08803>"]]
    assert target.to_image(torch.zeros(1, 24, dtype=torch.long)).shape == (1, 64, 96, 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", (1024, 1024)), ("1024x576", (1024, 576)), ("512x1024", (512, 1024))],
)
def test_sizes(text, size) -> None:
    assert parse_size(text, TARGETS["lumina_mgpt"].sizes) == size


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("a/Lumina-mGPT-7B-512", "512"), ("x/y-1024/", "1024"), ("mine", "768"), ("b-512x", "768"),
        ("models--a--b-512/snapshots/1f-1024", "512"), ("b-1024/.", "1024"), (".", "512"),
    ],
)  # fmt: skip
def test_the_size_is_that_of_the_folders_name(path, size, tmp_path, monkeypatch) -> None:
    (tmp_path / "b-512").mkdir()
    monkeypatch.chdir(tmp_path / "b-512")
    assert EngineSettings(model="lumina_mgpt", model_path=path).target_size == size
