"""Files of prompts: lines of text, lines of JSON, PartiPrompts, captions of MS-COCO.

What cannot be used is a SettingsError that names flag and file, and the line. Entries without a
prompt are left out and counted on stderr.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from configs.fields import SettingsError
from support.durable import reason
from support.json_files import parse_json, shortened
from support.output import remark

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")  # an id becomes the name of a file
_LINE = (
    'lines {"id": "fox-1", "prompt": "a red fox"}, ids of letters, digits, . and -, each once or '
    "nowhere"
)
_TABLE = "a TSV with a column 'Prompt'"
_CAPTIONS = "COCO captions as JSON, with `images` (id) and `annotations` (image_id, caption)"
_PICKS: dict[str, Callable[[list[str]], list[str]]] = {
    "first": lambda captions: captions[:1],  # as in the paper's repository
    "longest": lambda captions: [max(captions, key=len)],
    "all": list,
}


def read_text_lines(path: Path) -> list[str]:
    """Return a prompt per line; blank lines are skipped, blanks around a prompt are kept."""
    lines = _read_text(path, "prompt").split("\n")
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        _refuse(path, "prompt", "no prompt", "one prompt per line")
    return prompts


def read_jsonl(path: Path) -> tuple[list[str | None], list[str]]:
    """Return the ids and prompts of lines `{"id": "fox-1", "prompt": "a red fox"}`.

    All lines have an id, or none has.
    """
    names: list[str | None] = []
    prompts: list[str] = []
    for number, line in enumerate(_read_text(path, "prompt").split("\n"), 1):
        if not line.strip():
            continue
        try:
            name, prompt = _entry(line)
        except ValueError as error:
            _refuse(path, "prompt", f"in line {number} {error}", _LINE)
        if names and (name is None) != (None in names) or name is not None and name in names:
            found = f"in line {number} id {name!r} after {len(names)} others"
            _refuse(path, "prompt", found, _LINE)
        names.append(name)
        prompts.append(prompt)
    if not prompts:
        _refuse(path, "prompt", "no prompt", "one object with `prompt` per line")
    return names, prompts


def _entry(line: str) -> tuple[str | None, str]:
    """Return a line's id and prompt; a ValueError says what is wrong with it."""
    try:
        entry = parse_json(line)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from error
    if not isinstance(entry, dict) or "prompt" not in entry:
        raise ValueError(f"no object with `prompt` but {shortened(entry)}")
    prompt, name = entry["prompt"], entry.get("id")
    if not _is_text(prompt) or not prompt.strip():
        raise ValueError(f"prompt {shortened(prompt)}")
    name = str(name) if type(name) is int else name
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(f"id {shortened(name)}")
    return name, prompt


def read_parti(path: Path) -> list[str]:
    """Return the column `Prompt` of a TSV.

    Quotes are letters of the prompt, except around and inside a field that a spreadsheet quoted.
    """
    text = io.StringIO(_read_text(path, "prompt_file"))
    try:
        rows = list(csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE))
    except csv.Error as error:
        _refuse(path, "prompt_file", str(error), _TABLE)
    fields = [row.get("Prompt") or "" for row in rows]
    prompts = [_unquoted(field) for field in fields if field.strip()]
    if not prompts:
        _refuse(path, "prompt_file", "no prompts", _TABLE)
    if left_out := len(rows) - len(prompts):
        remark(f"--prompt_file {path}: {left_out} of {len(rows)} rows have no prompt: left out")
    return prompts


def _unquoted(field: str) -> str:
    """Return the text of a field that may be quoted as CSV is: in quotes, its own ones doubled."""
    quoted = re.fullmatch(r'"((?:[^"]|"")*)"', field)
    return quoted[1].replace('""', '"') if quoted else field


def read_coco(path: Path, caption: str) -> list[str]:
    """Return the captions of MS-COCO, image by image in the order of the list `images`.

    Args:
        path: a file of captions, such as captions_val2017.json.
        caption: of each image the `first` annotation, its `longest`, or `all` in the file's order.
    """
    text = _read_text(path, "prompt_file")
    try:
        content = parse_json(text)
        captions, blank = _captions(content["annotations"])
        images = [image["id"] for image in content["images"]]
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
    """Return the captions by image, and how many are blank and left out; a ValueError for one that
    is no text."""
    captions: dict[Any, list[str]] = defaultdict(list)
    blank = 0
    for number, annotation in enumerate(annotations, 1):
        text = annotation["caption"]
        if not _is_text(text):
            raise ValueError(f"caption {shortened(text)} in annotation {number}")
        if text.strip():
            captions[annotation["image_id"]].append(text)
        else:
            blank += 1
    return captions, blank


def _is_text(found: object) -> bool:
    """Return whether this is a text that UTF-8 can hold: JSON can spell half a character."""
    if not isinstance(found, str):
        return False
    try:
        found.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_text(path: Path, flag: str) -> str:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        _refuse(path, flag, found, "a file, or a text that does not end in .txt")
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        _refuse(path, flag, f"a file that cannot be read: {reason(error)}", "a file in UTF-8")
    except UnicodeDecodeError as error:
        _refuse(path, flag, f"a file that cannot be read: {error}", "a file in UTF-8")


def _refuse(path: Path, flag: str, found: str, allowed: str) -> NoReturn:
    raise SettingsError(f"--{flag} {path}: found {found}; allowed: {allowed}")
