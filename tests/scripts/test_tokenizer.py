"""The tiny tokenizer: id layout, any text without <unk>, special names in a prompt stay plain
text.
"""

import pytest

from scenes.captions import caption
from scenes.scene import sample_scene
from scripts.tiny.make_tokenizer import (
    CLOSING_NAMES,
    LEADING_NAMES,
    build_tokenizer,
    image_token_name,
)

FIRST_TEXT_ID = 1032


def _texts(count: int) -> list[str]:
    return [caption(sample_scene("train", i), i) for i in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(iter(_texts(800)))


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
    assert min(ids) >= FIRST_TEXT_ID


@pytest.mark.parametrize(
    "name",
    [*LEADING_NAMES, *CLOSING_NAMES, "IMGIMGAZ", "IMGIMGBACDZ", "<reserved00000>", "<image>"],
)
def test_special_names_in_a_prompt_are_plain_text(tokenizer, name):
    for text in (name, f"a red {name} circle", name * 2):
        ids = tokenizer.encode(text).ids
        assert min(ids) >= FIRST_TEXT_ID
        assert tokenizer.token_to_id(name) not in ids
        assert tokenizer.decode(ids) == text.lower()


def test_caption_words_are_single_tokens(tokenizer):
    for word in ("circle", "background", "purple", "checkered", "left"):
        assert len(tokenizer.encode(f" {word}").ids) == 1
    lengths = [len(tokenizer.encode(text).ids) for text in _texts(200)]
    assert max(lengths) <= 32


def test_same_captions_give_the_same_tokenizer():
    first, second = (build_tokenizer(iter(_texts(200))).to_str() for _ in range(2))
    assert first == second


def test_saved_file_loads_equal(tokenizer, tmp_path):
    path = str(tmp_path / "text_tokenizer.json")
    tokenizer.save(path)
    loaded = type(tokenizer).from_file(path)
    assert loaded.encode("a red star").ids == tokenizer.encode("a red star").ids
