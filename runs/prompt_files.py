"""Files of prompts: lines of text, lines of JSON, PartiPrompts, captions of MS-COCO.

What cannot be used is a SettingsError that names flag and file, and the line. Entries without a
prompt are left out and counted on stderr.
"""

import codecs
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from configs.downloads import failed_download
from configs.fields import Flag, flags_in, found_at, mismatch, near_names
from configs.model import SamplingSettings
from support.durable import reason
from support.json_files import parse_json, shortened
from support.output import remark

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")  # an id becomes the name of a file
_LINE = (
    'lines {"id": "fox-1", "prompt": "a red fox"}, ids of letters, digits, . and -, each once or '
    "nowhere; settings are flags, keys for yourself begin with _"
)
_EMPTY = "a file without any"
_UTF8 = "a file in UTF-8: save it as that in the editor, or use `iconv -f {} -t UTF-8`"
# Keys that people expect to count for one image: our settings and the names in other programs.
_IMAGE_SETTINGS = {
    *flags_in(SamplingSettings), "guidance_scale", "cfg_scale", "negative_prompt", "seed",
    "generator", "height", "width", "size", "aspect_ratio", "resolution", "target_size",
    "num_images", "num_samples", "samples_per_prompt", "num_images_per_prompt", "steps",
    "num_inference_steps", "method", "model",
}  # fmt: skip
_TABLE = "a TSV with a column 'Prompt'"
_CAPTIONS = "COCO captions as JSON, with `images` (id) and `annotations` (image_id, caption)"
_PICKS: dict[str, Callable[[list[str]], list[str]]] = {
    "first": lambda captions: captions[:1],  # as in the paper's repository
    "longest": lambda captions: [max(captions, key=len)],
    "all": list,
}


def read_text_lines(path: Path) -> list[str]:
    """Return a prompt per line; blank lines are skipped, blanks around a prompt are kept."""
    # Not splitlines(), which also breaks lines at U+2028 and at form feeds.
    prompts = [text for text in _read_text(path, "prompt").split("\n") if text.strip()]
    if not prompts:
        _refuse(path, "prompt", _EMPTY, "one prompt per line")
    return prompts


def read_jsonl(path: Path) -> tuple[list[str | None], list[str]]:
    """Return the ids and prompts of lines `{"id": "fox-1", "prompt": "a red fox"}`.

    All lines have an id, or none has. Other keys are refused, since they would be ignored, unless
    they begin with `_`.
    """
    names: list[str | None] = []
    prompts: list[str] = []
    line_of: dict[str | None, int] = {}  # by id in small letters: where it stands first
    for number, text in enumerate(_read_text(path, "prompt").split("\n"), 1):
        if not text.strip():
            continue
        try:
            name, prompt = _entry(text)
            _check_id(name, line_of)
        except ValueError as error:
            _refuse(path, "prompt", f"in line {number} {error}", _LINE)
        line_of.setdefault(name and name.lower(), number)
        names.append(name)
        prompts.append(prompt)
    if not prompts:
        _refuse(path, "prompt", _EMPTY, "one object with `prompt` per line")
    return names, prompts


def _check_id(name: str | None, line_of: Mapping[str | None, int]) -> None:
    """Raise a ValueError for an id that an earlier line has, and where only some lines have one.

    Capitals do not tell ids apart: on some disks two images would be one file.
    """
    if name is not None and name.lower() in line_of:
        first = line_of[name.lower()]
        raise ValueError(f"id {name!r} for the second time, after line {first} (in any case)")
    if line_of and (name is None) != (None in line_of):
        first = next(iter(line_of.values()))
        has = f"id {name!r}, and none in" if None in line_of else "no id, but one in"
        raise ValueError(f"{has} line {first}")


def _entry(text: str) -> tuple[str | None, str]:
    """Return a line's id and prompt; a ValueError says what is wrong with it."""
    try:
        entry = parse_json(text, unique=True)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(entry, dict) or "prompt" not in entry:
        raise ValueError(f"no object with `prompt` but {shortened(entry)}")
    prompt, name = entry.pop("prompt"), entry.pop("id", None)
    if text_fault(prompt):
        raise ValueError(f"prompt {shortened(prompt)}, which is {text_fault(prompt)}")
    name = str(name) if type(name) is int else name  # not isinstance: True is an int
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(f"id {shortened(name)}")
    for key in entry:
        if key.lower().replace("-", "_") in _IMAGE_SETTINGS:
            raise ValueError(f"{key!r}, which counts for a whole run and not for one line")
        if not key.startswith("_"):
            near = near_names(key, ("prompt", "id"))
            raise ValueError(f"the key {key!r}, which nothing reads. {near}".strip())
    return name, prompt


def read_parti(path: Path) -> list[str]:
    """Return the column `Prompt` of a TSV.

    Quotes are letters of the prompt, except around and inside a field that a spreadsheet quoted.
    """
    # Not by CSV's rules: prompts that begin with a quoted word would lose their quotes.
    lines = [line.split("\t") for line in _read_text(path, "prompt_file").split("\n") if line]
    names, *rows = lines or [[]]
    if names.count("Prompt") > 1:
        _refuse(path, "prompt_file", "the column 'Prompt' twice", _TABLE)
    fields = [dict(zip(names, row, strict=False)).get("Prompt", "") for row in rows]
    # a field that is quoted as CSV is: in quotes, its own ones doubled
    prompts = [
        field[1:-1].replace('""', '"') if re.fullmatch(r'"([^"]|"")*"', field) else field
        for field in fields
        if field.strip()
    ]
    if not prompts:
        _refuse(path, "prompt_file", "no prompts", _TABLE)
    if left_out := len(rows) - len(prompts):
        remark(f"--prompt_file {path}: {left_out} of {len(rows)} rows have no prompt: left out")
    return prompts


def read_coco(path: Path, caption: str) -> list[str]:
    """Return the captions of MS-COCO, image by image in the order of the list `images`.

    caption: of each image the `first` annotation, its `longest`, or `all` in the file's order.
    """
    text = _read_text(path, "prompt_file")
    try:
        content = parse_json(text)
        captions, blank = _captions(content["annotations"])
        images = [image["id"] for image in content["images"]]
        if twice := [image for image, count in Counter(images).items() if count > 1]:
            raise ValueError(f"image id {twice[0]!r} for the second time")
        prompts = [text for image in images if image in captions
                   for text in _PICKS[caption](captions[image])]  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        _refuse(path, "prompt_file", f"{type(error).__name__} ({error})", _CAPTIONS)
    if not prompts:
        _refuse(path, "prompt_file", "no captions", "at least one image with a caption")
    if blank:
        remark(f"--prompt_file {path}: {blank} captions are blank: left out")
    return prompts


def _captions(annotations: list[dict[str, Any]]) -> tuple[dict[Any, list[str]], int]:
    """Return captions by image, and how many are blank; a ValueError for one that is no text."""
    captions: dict[Any, list[str]] = defaultdict(list)
    blank = 0
    for number, annotation in enumerate(annotations, 1):
        text = annotation["caption"]
        match text_fault(text):
            case None:
                captions[annotation["image_id"]].append(text)
            case "blank":
                blank += 1
            case fault:
                raise ValueError(f"caption {shortened(text)} in annotation {number}, {fault}")
    return captions, blank


def text_fault(text: object) -> str | None:
    """Return, in words, why this is no prompt, None if it is one."""
    if not isinstance(text, str):
        return "no text"
    if not text.strip():
        return "blank"
    if "\0" in text:  # as in UTF-16 that is read as UTF-8
        return "text with a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell half a character
        return "not UTF-8"
    return None


def _read_text(path: Path, flag: str) -> str:
    if not path.is_file():
        expected = "an existing prompt file" + (" or a text" if flag == "prompt" else "")
        _refuse(path, flag, found_at(path), expected)
    try:
        text = path.read_text("utf-8-sig")  # editors on Windows put a mark before the text
    except OSError as error:
        _refuse(path, flag, f"a file that cannot be read: {reason(error)}", "a file in UTF-8")
    except UnicodeDecodeError as error:
        wide = error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        encoding = "UTF-16" if wide or b"\0" in error.object else "ITS_ENCODING"
        got = f"a file that is not in UTF-8: {error}"
        _refuse(path, flag, got, _UTF8.format(encoding))
    if text.strip() and (fault := failed_download(path)):
        _refuse(path, flag, fault, "a file in UTF-8")
    if "\0" in text:
        number = text[: text.index("\0")].count("\n") + 1
        got = f"a NUL character in line {number}, as in UTF-16"
        _refuse(path, flag, got, _UTF8.format("UTF-16"))
    return text


def _refuse(path: Path, flag: str, got: str, allowed: str) -> NoReturn:
    raise mismatch(Flag(flag, path), got, allowed)
