"""Lumina-mGPT: sizes and ends of rows; every method decodes what plain decoding does."""

from itertools import product

import pytest
import torch
from browser import thinned
from fakes import codes, finished
from families import assert_chosen
from small import open_lumina

from configs.schema import AdtSettings, MethodSettings, RunSettings, SamplingSettings
from configs.targets import TARGETS, parse_size
from decoding.images import Job
from decoding.sampling import SamplingDistribution

JOBS = [Job("a", "a cat", 11), Job("b", "two large dogs", 12), Job("c", "fog", 13)]
METHODS = {
    "ar": MethodSettings("ar"),
    "static": MethodSettings(method="static"),
    "eagle2 topk": MethodSettings(method="eagle2", proposal="topk", depth=3, width=3, nodes=9),
    "deep eagle2": MethodSettings(method="eagle2", depth=7, width=3, nodes=12),
    "adt": MethodSettings(method="adt", own=AdtSettings(d_max=5)),
    "jacobi": MethodSettings(method="jacobi", window=7),
    "eagle_recall": MethodSettings(method="eagle_recall", depth=3, width=3, nodes=10),
}
DISTRIBUTIONS = [
    SamplingDistribution(),
    SamplingDistribution(temperature=0.0),
    SamplingDistribution(cfg=1.0),
    SamplingDistribution(top_k=5, top_p=0.9),
]
# 4 x 4, 4 rows of 6 and 6 rows of 2 image tokens: in the last, trees cross several row ends at once
CASES = thinned(product(["64", "96x64", "32x96"], DISTRIBUTIONS))


@pytest.mark.parametrize(("size", "distribution"), CASES, ids=str)
def test_every_method_decodes_what_plain_decoding_does(size, distribution, lumina_folder) -> None:
    lumina, sampling = open_lumina(lumina_folder, size), SamplingSettings(**vars(distribution))
    engine = lumina.open_engine(METHODS["ar"], sampling)
    images = finished(engine, JOBS)
    for image in images.values():
        assert_chosen(engine, image)
    truth = {name: image.codes.tolist() for name, image in images.items()}
    assert len({tuple(codes) for codes in truth.values()}) == 3
    for batch, (name, method) in product((1, 3), METHODS.items()):
        assert codes(lumina.open_engine(method, sampling, batch), JOBS) == truth, (name, batch)


def test_trees_run_on_across_row_ends(lumina_folder) -> None:
    """Where rows hold two tokens, a round that accepts two has crossed an end."""
    session = open_lumina(lumina_folder, "32x96")
    engine = session.open_engine(METHODS["deep eagle2"])
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
    assert RunSettings(prompt="a cat", model="lumina_mgpt", model_path=path).target_size == size
