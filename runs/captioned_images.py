"""Images with captions, one by one, from a folder or a list of lines.

What cannot be used is also an item: its `load` raises a Fault that says why. Does not import torch.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NoReturn

from configs.downloads import failed_download
from configs.fields import Flag, found_at, mismatch, one_of
from runs.prompt_files import text_fault
from support.durable import reason
from support.json_files import parse_json

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
LIST = "captions.jsonl"
_UNPACK = "Unpack WebDataset shards first: tar -xf FILE."  # KEY.jpg and KEY.txt are pairs then
# also those of Hugging Face's image folders: file_name and text
_IMAGE_KEYS, _CAPTION_KEYS = ("image", "file", "file_name"), ("caption", "text", "prompt")


class Fault(ValueError):
    """Why an image is left out: a reason out of few, a colon, details."""


@dataclass(frozen=True)
class Captioned:
    """An image, and what loads its caption and file content."""

    id: str  # that no other one has
    load: Callable[[], tuple[str, bytes]]  # raises a Fault if one of them cannot be used


def captioned_images(source: Path) -> Iterator[Captioned]:
    """Yield the images of --data_dir, always in the same order. `source` is one of

    - a folder of images, and in the folders in it, each with a .txt of the same name;
    - a .jsonl file, or a folder with `captions.jsonl` or one other .jsonl. Its lines have `image`,
      `file` or `file_name` (relative to it), and `caption`, `text` or `prompt` (a text, or a list,
      of which the first is taken).
    """
    items = _distinct(_read(source))
    first = next(items, None)
    if first is None:
        expected = f"images ({', '.join(IMAGE_ENDINGS)}) with captions"
        advice = "Captions are .txt files of the images' names, or in a .jsonl file."
        raise mismatch(Flag("data_dir", source), "no image", expected, f"{advice} {_UNPACK}")
    return chain([first], items)


def _read(source: Path) -> Iterator[Captioned]:
    if source.suffix == ".jsonl" and source.is_file():
        return _listed(source)
    if not source.is_dir():
        got = found_at(source)
        raise mismatch(Flag("data_dir", source), got, "a folder or a .jsonl file", _UNPACK)
    if shards := sorted(source.glob("*.tar")):
        raise mismatch(Flag("data_dir", source), shards[0].name, "images with captions", _UNPACK)
    lists = sorted(source.glob("*.jsonl"))
    if source / LIST in lists:
        lists = [source / LIST]
    if len(lists) > 1:
        names = ", ".join(path.name for path in lists[:4])
        raise mismatch(Flag("data_dir", source), names, f"{LIST}, or one .jsonl file")
    if lists:
        return _listed(lists[0])
    # a folder of texts alone has no image, rather than captions without one
    found = chain.from_iterable(names for _, names in folders_in(source))
    images = any(name.lower().endswith(IMAGE_ENDINGS) for name in found)
    return _paired(source) if images else iter(())


def _distinct(items: Iterable[Captioned]) -> Iterator[Captioned]:
    """Yield the items with ids in UTF-8; an id's second item gets another id and a fault."""
    seen: Counter[str] = Counter()
    for item in items:
        id = item.id.encode(errors="backslashreplace").decode()  # a file's name may be any bytes
        seen[id] += 1
        again = _unusable(f"{id} ({seen[id]})", f"named twice: {id}")
        yield again if seen[id] > 1 else replace(item, id=id)


def _unusable(id: str, why: str) -> Captioned:
    def load() -> NoReturn:
        raise Fault(why)

    return Captioned(id, load)


def _paired(folder: Path) -> Iterator[Captioned]:
    """Yield the images of a folder and the folders in it, by path, and captions without one."""
    for root, names in folders_in(folder):
        captioned = {Path(name).stem for name in names if name.lower().endswith(IMAGE_ENDINGS)}
        for name in names:
            path = root / name
            id = path.relative_to(folder).as_posix()
            if name.lower().endswith(IMAGE_ENDINGS):
                yield Captioned(id, partial(_load_pair, path))
            elif path.suffix == ".txt" and path.stem not in captioned:
                yield _unusable(id, "no image: none with this caption's name")


def folders_in(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and those in it, by path, each once however many links lead to it."""
    real_top, seen = top.resolve(), set()
    for name, folders, names in os.walk(top, onerror=_refuse, followlinks=True):
        root = Path(name)
        real, unlinked = root.resolve(), real_top / root.relative_to(top)
        # what is in `top` without links is read there, so that its images keep their names
        if real in seen or (real != unlinked and real.is_relative_to(real_top)):
            folders.clear()
            continue
        seen.add(real)
        # in place, since os.walk goes through this very list
        folders.sort()
        yield root, sorted(names)


def _refuse(error: OSError) -> NoReturn:
    raise error


def _load_pair(path: Path) -> tuple[str, bytes]:
    text = path.with_suffix(".txt")
    if not text.is_file():
        raise Fault(f"no caption: no {text.name}")
    return _caption(_content(text, "caption")), _content(path, "image")


def _listed(path: Path) -> Iterator[Captioned]:
    """Yield the images that the lines of a file name, by those names."""
    try:
        if fault := failed_download(path):
            raise mismatch(Flag("data_dir", path), fault, "a .jsonl file")
        with path.open("rb") as file:
            for number, entry in enumerate(file, 1):
                if entry.strip():
                    yield _listed_image(path, number, entry)
    except OSError as error:
        raise mismatch(Flag("data_dir", path), str(error), "a .jsonl file") from error


def _listed_image(path: Path, number: int, line: bytes) -> Captioned:
    try:
        entry = dict(parse_json(line, finite=False))
        name = next(entry[key] for key in _IMAGE_KEYS if isinstance(entry.get(key), str))
        caption = next((entry[key] for key in _CAPTION_KEYS if key in entry), None)
    except (ValueError, TypeError, StopIteration):
        why = f"line cannot be read: no object with {one_of(_IMAGE_KEYS)}"
        return _unusable(f"{path.name}, line {number}", why)
    if isinstance(caption, list) and caption:
        caption = caption[0]
    return Captioned(name, lambda: (_caption(caption), _content(path.parent / name, "image")))


def _caption(content: object) -> str:
    """Return a caption without blanks around it; a Fault if it is none."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        if isinstance(content, bytes) and content.strip() and (fault := failed_download(content)):
            raise Fault(f"no caption: {fault}")
    except UnicodeDecodeError as error:
        raise Fault("no caption: it is not UTF-8") from error
    if (fault := text_fault(text)) is None:
        assert isinstance(text, str), "else it has a fault"
        return text.strip()
    special = {"blank": "empty caption", "no text": f"no caption: found {text!r}"}
    raise Fault(special.get(fault, f"no caption: it is {fault}"))


def _content(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a ValueError: a name with NUL in it
        raise Fault(f"{what} cannot be read: {reason(error)}") from error
