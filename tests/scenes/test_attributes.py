"""The attribute classifier: scores counted by hand, training and its data, files."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_runs import assert_resumes, write_split

from configs.schema import CLASSIFIER
from scenes.attribute_classifier import (
    AttributeClassifier,
    Attributes,
    prompt_accuracy,
    to_pixels,
)
from scenes.captions import caption
from scenes.painting import render_scene
from scenes.scene import sample_scene
from scenes.training.train_attributes import LABELS, AttributesRun, Targets, classifier_loss


def _record(kind, colour, *objects):
    pairs = [dict(zip(("colour", "shape"), name.split(), strict=True)) for name in objects]
    return {"background": {"kind": kind, "colour": colour}, "objects": pairs}


SAID = [_record("plain", "red", "blue star", "green ring"), _record("cloudy", "green", "red heart")]


def _attributes(*records):
    return [Attributes.from_record(record) for record in records]


@pytest.fixture(scope="module")
def scenes():
    drawn = [sample_scene("train", i) for i in range(8)]
    images = torch.from_numpy(np.stack([render_scene(scene) for scene in drawn]))
    return images, [{"index": i, **scene.attributes()} for i, scene in enumerate(drawn)]


def test_scores_by_hand():
    first = _record("plain", "blue", "blue ring", "red star")
    second = _record("cloudy", "green", "red heart", "white heart")
    seen = SimpleNamespace(predict=lambda images: images)
    assert prompt_accuracy(_attributes(first, second), SAID, seen) == {
        "background_kind": 1.0,
        "background_colour": 0.5,
        "background": 0.5,
        "colour": pytest.approx(2 / 3),  # blue and red are seen, green is not
        "shape": 1.0,
        "object": pytest.approx(1 / 3),  # only the red heart
        "exact": 0.0,  # the second image shows a white heart too
    }


def test_what_cannot_be_compared_is_refused(tmp_path):
    save_file({"weight": torch.zeros(2)}, str(tmp_path / "other.safetensors"))
    with pytest.raises(ValueError, match="expected labels in its metadata"):
        AttributeClassifier.load(tmp_path / "other.safetensors")
    unread = ["a cat", "a red star", "on a plain blue background"]
    objects = ("a red ring and two green squares", "a blue star and a ring", "a blue star, 3 stars")
    objects = (*objects, "no blue star", "a red or blue star", "two blue star")
    for prompt in (*unread, *(f"{words} on a plain blue background" for words in objects)):
        assert Attributes.from_prompt(prompt, LABELS) is None


def test_learns_by_heart_and_survives_the_file(scenes, tmp_path):
    images, records = scenes
    torch.manual_seed(0)
    model = AttributeClassifier(LABELS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    targets = Targets.of([sample_scene("train", i) for i in range(len(records))])
    losses = []
    for _ in range(30):
        loss = classifier_loss(model, to_pixels(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4
    model.save(tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").stat().st_size < 1_000_000
    loaded = AttributeClassifier.load(tmp_path / "a.safetensors")
    scores = prompt_accuracy(images, records, loaded)
    assert min(scores["background"], scores["colour"]) > 0.9
    assert prompt_accuracy(images, records[1:] + records[:1], loaded)["background"] < 0.5
    assert loaded.predict(images.numpy(), batch_size=5) == loaded.predict(images)


def grey(codes):
    """Each image in the grey of its first code."""
    return codes[:, :1, None, None].to(torch.uint8).expand(-1, 128, 128, 3)


def test_training_continues_where_it_stopped(scenes, tmp_path, monkeypatch):
    codec = SimpleNamespace(decode=grey)
    monkeypatch.setattr("scenes.training.train_attributes.load_vqgan", lambda _: codec)
    images, records = scenes
    codes = np.arange(len(records))[:, None].repeat(4, axis=1)
    for split in ("train", "test"):
        write_split(tmp_path, split, records, codes, images.numpy())

    def new_run() -> AttributesRun:
        return AttributesRun(tmp_path, tmp_path, 4, torch.device("cpu"))

    assert new_run().decoded[:, 3, 5, 1].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    monkeypatch.setattr("scenes.training.train_attributes.load_vqgan", None)  # decodes only once
    whole = assert_resumes(new_run, tmp_path / "run.pt")
    figures = whole.validate(1)
    assert {name.split("_")[0] for name in figures} == {"clean", "degraded", "reconstructed"}
    whole.export(tmp_path)
    saved = AttributeClassifier.load(tmp_path / CLASSIFIER)
    assert saved.predict(images) == whole.module.eval().predict(images)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_caption_says_what_its_scene_holds(split):
    for index in range(300):
        scene = sample_scene(split, index)
        said = Attributes.from_prompt(caption(scene, index), LABELS)
        assert said == Attributes.from_record(scene.attributes())
