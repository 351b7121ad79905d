"""What the tiny model is trained on: rendered scenes or crops of pictures, and its tokenizer."""

import json

import numpy as np
import pytest
from PIL import Image

from configs.fields import SettingsError
from scenes.captions import caption, scene_captions
from scenes.painting import render_scene
from scenes.scene import sample_scene
from scenes.training.images import Split, make_images, pictures_of, read_pictures, scene_of
from scenes.training.make_tokenizer import (
    CLOSING_NAMES,
    LEADING_NAMES,
    build_tokenizer,
    image_token_name,
)


@pytest.fixture
def pictures(tmp_path):
    """Six pictures of 200 x 150 pixels, each of one grey, named by what they show."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(6):
        grey = np.full((150, 200, 3), 40 * number, np.uint8)
        Image.fromarray(grey).save(folder / f"n0000000{number}_grey_wall.png")
    return folder


def test_a_split_is_rendered_once_and_whole(tmp_path, monkeypatch) -> None:
    flags = {"work_dir": str(tmp_path), "split": "test", "count": 4}
    monkeypatch.setattr("scenes.training.images.replace_file", lambda *_: None)
    make_images(**flags)  # interrupted before its captions
    monkeypatch.undo()
    make_images(**flags)
    monkeypatch.setattr("scenes.training.images.draw_scene", None)
    make_images(**flags)
    split = Split.read(tmp_path, "test")
    assert np.array_equal(split.images[3], render_scene(sample_scene("test", 3)))
    record = split.records[3]
    assert record["index"] == 3 and record["caption"] == caption(sample_scene("test", 3), 3)
    assert record["background"] == sample_scene("test", 3).attributes()["background"]


def test_held_out_pictures_are_never_trained_on(pictures, tmp_path) -> None:
    flags = {"work_dir": str(tmp_path), "pictures": str(pictures), "holdout": 2}
    make_images(**flags, split="train", count=12)
    make_images(**flags, split="validation", count=2)
    train, validation = (Split.read(tmp_path, split) for split in ("train", "validation"))
    files = [{record["file"] for record in split.records} for split in (train, validation)]
    assert (len(files[0]), len(files[1])) == (4, 2) and not files[0] & files[1]
    for split in (train, validation):
        for image, record in zip(split.images, split.records, strict=True):
            assert (image == 40 * int(record["file"][8])).all()
            assert record["caption"] == "grey wall"
    assert scene_of("train", train.records[0]) is None
    assert (tmp_path / "prompts_train.txt").read_text() == "grey wall\n"
    make_images(**flags, split="train", count=12)
    with pytest.raises(SettingsError, match="--work_dir: expected a new folder: its train images"):
        make_images(**flags | {"pictures": str(tmp_path)}, split="train", count=12)


def test_a_file_of_captions_is_read_and_faulty_pictures_are_left_out(pictures, capsys) -> None:
    names = sorted(path.name for path in pictures.iterdir())
    records = [{"file": names[0], "caption": "a wall"}, {"file": "gone.png", "caption": "a gap"}]
    (pictures / "captions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    assert [(id, text) for id, text, _ in read_pictures(pictures)] == [(names[0], "a wall")]
    assert "left out: gone.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"split": "test"}, "--split: with --pictures expected train or validation, got test"),
        ({"holdout": 6}, "--holdout: expected 1 to 5, got 6"),
        ({"holdout": 0}, "--holdout: expected 1 to 5, got 0"),
    ],
)
def test_what_does_not_fit_a_folder_is_refused(pictures, flags, message) -> None:
    with pytest.raises(ValueError, match=message):
        pictures_of(pictures, **{"split": "train", "holdout": 1} | flags)


def test_a_file_that_is_no_picture_and_missing_images_are_named(pictures, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"images_train\.npy: not found"):
        Split.read(tmp_path, "train")
    for path in pictures.iterdir():
        path.write_bytes(b"text")
    with pytest.raises(ValueError, match=r"grey_wall\.png: expected a picture"):
        make_images(work_dir=str(tmp_path), pictures=str(pictures), holdout=1, count=1)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(scene_captions("train", 800))


def test_layout_of_ids(tokenizer):
    assert [tokenizer.token_to_id(name) for name in LEADING_NAMES] == [0, 1, 2, 3]
    assert image_token_name(53) == "IMGIMGFDZ"
    assert image_token_name(1023) == "IMGIMGBACDZ"
    codes = [tokenizer.token_to_id(image_token_name(code)) for code in (0, 53, 1023)]
    assert codes == [4, 57, 1027]
    assert [tokenizer.token_to_id(name) for name in CLOSING_NAMES] == [1028, 1029, 1030, 1031]
    size = tokenizer.get_vocab_size()
    assert size % 64 == 0
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))


@pytest.mark.parametrize(
    "text", ["🌲🐟 emoji", "一只红色的狐狸", "naïve café\n\ttabs", "\x00\x7f", "a red circle"]
)
def test_any_text_round_trips_without_unk(tokenizer, text):
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text.lower()
    assert min(ids) >= 1032  # behind the images' and special tokens


def test_caption_words_are_single_tokens(tokenizer):
    for word in ("circle", "background", "purple", "checkered", "left"):
        assert len(tokenizer.encode(f" {word}").ids) == 1
    lengths = [len(tokenizer.encode(text).ids) for text in scene_captions("train", 200)]
    assert max(lengths) <= 32
