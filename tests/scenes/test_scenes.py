"""Scenes: the same for the same seed, inside the image, and captions that name what they show."""

import re

import numpy as np
import pytest

from configs.targets import ROOT
from scenes import scene as scenes
from scenes.captions import caption
from scenes.painting import RGB, render_scene
from scenes.scene import Background, Scene, SceneObject, sample_scene

SAMPLE = [sample_scene("validation", i) for i in range(300)]


def test_scene_depends_on_split_and_index_only():
    assert sample_scene("train", 7) == sample_scene("train", 7)
    assert sample_scene("train", 7) != sample_scene("train", 8)
    assert sample_scene("train", 7) != sample_scene("test", 7)
    for pair in (("training", 0), ("train", -1)):
        with pytest.raises(ValueError, match="expected"):
            sample_scene(*pair)


def test_example_prompts_name_the_colour_of_a_background():
    """As every caption does: without one the model is asked what it has not learned."""
    places = "*.md", "docs/*.md", "page/*.py", "scripts/*.py"
    texts = {path: path.read_text("utf-8") for place in places for path in ROOT.glob(place)}
    kinds = "|".join(scenes.BACKGROUND_KINDS)
    colourless = re.compile(rf"\bon an? ({kinds}) background\b")
    assert len(texts) > 20 and not [path for path in texts if colourless.search(texts[path])]


def test_every_attribute_occurs():
    objects = [(o.shape, o.colour, o.size, o.fill) for scene in SAMPLE for o in scene.objects]
    of_objects = scenes.SHAPES, scenes.OBJECT_COLOURS, scenes.SIZES, scenes.FILLS
    assert [*map(set, zip(*objects, strict=True))] == [*map(set, of_objects)]
    assert {scene.background.kind for scene in SAMPLE} == set(scenes.BACKGROUND_KINDS)
    assert {scene.background.colour for scene in SAMPLE} == set(scenes.BACKGROUND_COLOURS)
    assert {len(scene.objects) for scene in SAMPLE} == {1, 2, 3}
    relations = {None, "left of", "right of", "above", "below"}
    assert {scene.relation() for scene in SAMPLE} == relations


def test_objects_are_inside_apart_and_of_other_colours():
    for scene in SAMPLE:
        colours = [scene.background.colour, *(item.colour for item in scene.objects)]
        assert len(set(colours)) == len(colours)
        for number, item in enumerate(scene.objects):
            for centre in (item.x, item.y):
                assert item.diameter / 2 <= centre <= scenes.IMAGE_SIZE - item.diameter / 2
            for other in scene.objects[:number]:
                distance = max(abs(item.x - other.x), abs(item.y - other.y))
                assert distance >= (item.diameter + other.diameter) / 2


def test_captions_are_short_and_the_same_for_the_same_seed():
    """That they name what a scene holds is tested in eval/metrics/test_attributes.py."""
    changed = 0  # captions that another seed words in another way
    for index, scene in enumerate(SAMPLE):
        text = caption(scene, index)
        assert text == caption(scene, index) and len(text.split()) <= 30
        changed += caption(scene, index + 1) != text
    assert changed


def test_relation_words_match_the_geometry():
    left = SceneObject("circle", "red", "small", "solid", x=30, y=64, diameter=28)
    right = SceneObject("star", "white", "small", "solid", x=98, y=60, diameter=28)
    ground = Background("plain", "blue")
    texts = [caption(Scene(ground, (left, right), 0), seed) for seed in range(60)]
    assert any("left of" in text for text in texts)
    assert not any("right of" in text or "above" in text or "under" in text for text in texts)
    assert Scene(ground, (left,), 0).position() == "left"
    assert Scene(ground, (right, left), 0).relation() == "right of"


@pytest.mark.parametrize("kind", scenes.BACKGROUND_KINDS)
def test_painted_object_and_background_have_their_colours(kind):
    item = SceneObject("square", "red", "large", "solid", x=40, y=80, diameter=52)
    image = render_scene(Scene(Background(kind, "blue"), (item,), texture_seed=5))
    assert (image.shape, image.dtype) == ((128, 128, 3), np.uint8)
    middle = image[70:90, 30:50].reshape(-1, 3).mean(axis=0)
    assert np.abs(middle - RGB["red"]).max() < 12
    ground = image[:40, 80:].reshape(-1, 3).mean(axis=0)
    assert ground[2] > ground[0] + 20
    assert (image[:40, 80:].std(axis=(0, 1)).max() < 1) == (kind == "plain")
