"""Images with captions: ids, captions and contents; what cannot be used says why."""

import json
from pathlib import Path

import pytest

from configs.fields import SettingsError
from runs.captioned_images import Fault, captioned_images


def loaded(place: Path) -> dict[str, tuple[str, bytes] | str]:
    found = {}
    for item in captioned_images(place):
        try:
            found[item.id] = item.load()
        except Fault as fault:
            found[item.id] = str(fault)
    return found


def test_a_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    for name in ("b.png", "a.JPG", "a.webp", "sub/c.jpeg", "plain.png", "other.gif"):
        (tmp_path / name).write_bytes(name.encode())
    captions = {"a": " a cat\n", "b": " \n", "sub/c": "\ufeffa dog", "lost": "a bus"}
    for name, text in captions.items():
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    assert loaded(tmp_path) == {
        "a.JPG": ("a cat", b"a.JPG"),
        "a.webp": ("a cat", b"a.webp"),
        "b.png": "empty caption",
        "lost.txt": "no image: none with this caption's name",
        "plain.png": "no caption: no plain.txt",
        "sub/c.jpeg": ("a dog", b"sub/c.jpeg"),
    }
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xff")
    assert loaded(tmp_path)["b.png"] == "no caption: it is not UTF-8"


def test_links_to_folders_are_followed_once(tmp_path):
    """Not round in circles, and an image keeps the path that it has without links."""
    for folder in ("top/real", "other/below"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.png").write_bytes(b"")
    links = {"top/again": "real", "top/deep": "../other/below", "top/whole": "../other"}
    links |= {"other/back": "../top", "other/loop": "."}
    for link, place in links.items():
        (tmp_path / link).symlink_to(place)
    (tmp_path / "link").symlink_to("top")
    for place in ("top", "link"):
        assert [*loaded(tmp_path / place)] == ["deep/a.png", "real/a.png"]


LINES = [
    {"image": "i/1.png", "caption": "one"},
    {"file": "i/2.png", "text": ["two", "deux"]},
    {"file_name": "i/1.png", "prompt": "again"},
    {"image": "i/3.png"},
    {"image": "i/4.png", "caption": "four"},
    {"image": "i/5.png", "caption": []},
    {"image": "i/6.png", "caption": "  "},
    {"caption": "x"},
    [1],
]


@pytest.mark.parametrize(
    ("name", "direct"), [("captions.jsonl", False), ("any.jsonl", False), ("any.jsonl", True)]
)
def test_a_list_of_lines(tmp_path, name, direct):
    (tmp_path / "i").mkdir()
    for number in (1, 2):
        (tmp_path / f"i/{number}.png").write_bytes(b"%d" % number)
    if name == "captions.jsonl":
        (tmp_path / "another.jsonl").write_text("")
    lines = "".join(json.dumps(line) + "\n" for line in LINES)
    (tmp_path / name).write_text(lines + "\n{broken\n")
    wanted = "line cannot be read: no object with image, file or file_name"
    assert loaded(tmp_path / name if direct else tmp_path) == {
        "i/1.png": ("one", b"1"),
        "i/2.png": ("two", b"2"),
        "i/1.png (2)": "named twice: i/1.png",
        "i/3.png": "no caption: found None",
        "i/4.png": "image cannot be read: No such file or directory",
        "i/5.png": "no caption: found []",
        "i/6.png": "empty caption",
        f"{name}, line 8": wanted,
        f"{name}, line 9": wanted,
        f"{name}, line 11": wanted,
    }


@pytest.mark.parametrize(
    ("names", "place", "message"),
    [
        ((), "no", "no: expected a folder or a .jsonl file, got a path that does not exist"),
        (("a.gif", "a.txt"), ".", "expected images .* with captions, got no image"),
        (("a.tar",), ".", "got a.tar. Unpack WebDataset shards first: tar -xf FILE"),
        (("a.png", "a.txt", "b.tar"), ".", "got b.tar. Unpack WebDataset shards first"),
        (("a.jsonl", "b.jsonl"), ".", "expected captions.jsonl, or one .*got a.jsonl, b.jsonl"),
        (("a.png",), "a.png", "expected a folder or a .jsonl file, got a file. Unpack"),
    ],
)
def test_places_that_cannot_be_used(tmp_path, names, place, message):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(SettingsError, match=f"--data_dir .*{message}"):
        captioned_images(tmp_path / place)
