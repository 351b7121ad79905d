"""Which images a run makes: prompts, the numbers that name them, how many of each. Does not import torch."""

import csv
import difflib
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from configs.fields import SettingsError, refuse
from configs.schema import DATASETS, RunSettings
from configs.targets import ROOT

_COCO = "http://images.cocodataset.org/annotations/annotations_trainval2017.zip"
_SOURCES = {
    "PartiPrompts": "https://raw.githubusercontent.com/google-research/parti/main/PartiPrompts.tsv",
    "MSCOCO2017Val": f"annotations/captions_val2017.json in {_COCO}",
    "MSCOCO2017Train": f"annotations/captions_train2017.json in {_COCO}",
}
_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}"
)  # an id in a .jsonl file: it becomes a file's name
_ABSENT = ("MSCOCO2014Val", "SJDPrompts")  # data sets of related programs


@dataclass(frozen=True)
class PromptItem:
    """One image to make.

    number: place of the prompt in the whole list, from 0; sample: number of the image among its prompt's;
    occurrence: how many earlier prompts of the whole list are the same text; name: the prompt's own id, if it has one.
    """

    prompt: str
    number: int
    sample: int
    occurrence: int
    name: str | None = None

    @property
    def id(self) -> str:
        """The name of the image, the same whatever else is made beside it."""
        return f"{self.name or format(self.number, '05d')}_{self.sample}"


def prompt_items(settings: RunSettings) -> list[PromptItem]:
    """The images of a run, prompt by prompt; a SettingsError for a prompt source that cannot be used."""
    names, prompts = _named_prompts(settings)
    items = numbered(prompts, names)
    return [
        replace(items[number], sample=sample)
        for number in _chosen(settings, len(prompts))
        for sample in range(settings.samples_per_prompt)
    ]


def numbered(prompts: Sequence[str], names: Sequence[str | None] | None = None) -> list[PromptItem]:
    """The first image of every prompt of a list; names: their own ids, if they have some."""
    seen: Counter[str] = Counter()
    items = []
    for number, prompt in enumerate(prompts):
        items.append(PromptItem(prompt, number, 0, seen[prompt], names[number] if names else None))
        seen[prompt] += 1
    return items


def read_prompts(settings: RunSettings) -> list[str]:
    """The whole list that the prompt source holds, in its order."""
    return _named_prompts(settings)[1]


def _named_prompts(settings: RunSettings) -> tuple[list[str | None], list[str]]:
    """The ids of the prompts, None for those without one, and the prompts."""
    if settings.source == "file" and settings.prompt.lower().endswith(".jsonl"):
        return _read_jsonl(Path(settings.prompt))
    prompts = _plain_prompts(settings)
    return [None] * len(prompts), prompts


def _plain_prompts(settings: RunSettings) -> list[str]:
    if settings.source == "text":
        _refuse_near_name(settings.prompt)
        _refuse_file(settings.prompt)
        return [settings.prompt]
    if settings.source == "file":
        return _read_lines(Path(settings.prompt))
    default = ROOT / "configs" / "prompts" / DATASETS[settings.source]
    path = Path(settings.prompt_file) if settings.prompt_file is not None else default
    if not path.is_file():
        raise SettingsError(
            f"--prompt {settings.source}: found no file {path}; allowed: {default} or --prompt_file; "
            f"get it from {_SOURCES[settings.source]}, or by scripts/get_prompts.sh"
        )
    return (
        _read_parti(path)
        if settings.source == "PartiPrompts"
        else _read_coco(path, settings.caption or "first")
    )


def _chosen(settings: RunSettings, total: int) -> list[int]:
    """The numbers of the prompts to use, ascending: first --num_images or --sample, then --slice."""
    numbers = list(range(total))
    if settings.source == "text":
        return numbers
    if settings.sample is not None:
        if settings.sample > total:
            refuse("sample", settings.sample, f"1 to {total}, the prompts of {settings.prompt}")
        numbers = sorted(
            sorted(numbers, key=lambda n: _rank(settings.sample_seed, n))[: settings.sample]
        )
    elif settings.num_images != -1:
        if settings.num_images > total:
            refuse(
                "num_images",
                settings.num_images,
                f"-1 (all) or 1 to {total}, the prompts of {settings.prompt}",
            )
        numbers = numbers[: settings.num_images]
    if settings.slice_bounds is None:
        return numbers
    first, end = settings.slice_bounds
    if first >= len(numbers):
        refuse(
            "slice", settings.slice, f"a-b with a below {len(numbers)}, the number of prompts taken"
        )
    return numbers[first:end]


def _rank(seed: int, number: int) -> bytes:
    """A random rank of a prompt: subsets of the same seed contain each other, in every version of Python."""
    return hashlib.sha256(f"{seed}:{number}".encode()).digest()


def _refuse_near_name(prompt: str) -> None:
    """A SettingsError if a single word is nearly a data set's name, rather than an image of that word."""
    names = {name.lower(): name for name in (*DATASETS, *_ABSENT)}
    if len(prompt.split()) == 1 and difflib.get_close_matches(
        prompt.strip().lower(), names, 1, 0.85
    ):
        refuse(
            "prompt",
            prompt,
            f"{' or '.join(DATASETS)}, written like this, a .txt file, or a text of several words",
        )


def _refuse_file(prompt: str) -> None:
    """A SettingsError for the path of a file of another kind, rather than an image of its name."""
    try:
        exists = Path(prompt).is_file()
    except OSError:  # too long for a path
        return
    if exists:
        sets = " or ".join(DATASETS)
        refuse(
            "prompt",
            prompt,
            f"a text, a .txt or .jsonl file; other files with --prompt {sets} --prompt_file FILE",
        )


def _read_text(path: Path, flag: str) -> str:
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise SettingsError(
            f"--{flag} {path}: found {found}; allowed: a file, or a text that does not end in .txt"
        )
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"--{flag} {path}: cannot be read: {error}; allowed: a file in UTF-8"
        ) from error


def _read_lines(path: Path) -> list[str]:
    """One prompt per line; blank lines are skipped, blanks around a prompt are kept."""
    lines = _read_text(path, "prompt").split("\n")
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise SettingsError(f"--prompt {path}: found no prompt; allowed: one prompt per line")
    return prompts


def _read_jsonl(path: Path) -> tuple[list[str | None], list[str]]:
    """Ids and prompts of lines `{"id": "fox-1", "prompt": "a red fox"}`; all lines have an id, or none has."""
    names, prompts = [], []
    for number, line in enumerate(_read_text(path, "prompt").split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompt, name = entry["prompt"], entry.get("id")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _refuse_line(path, number, f"{type(error).__name__} ({error})")
        if not isinstance(prompt, str) or not prompt.strip():
            _refuse_line(path, number, f"prompt {prompt!r}")
        name = str(name) if isinstance(name, int) else name
        if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
            _refuse_line(path, number, f"id {name!r}")
        if (name is None) != (None in names) and names or name is not None and name in names:
            _refuse_line(path, number, f"id {name!r} after {len(names)} others")
        names.append(name)
        prompts.append(prompt)
    if not prompts:
        raise SettingsError(
            f"--prompt {path}: found no prompt; allowed: one object with `prompt` per line"
        )
    return names, prompts


def _refuse_line(path: Path, number: int, found: str) -> NoReturn:
    allowed = 'lines {"id": "fox-1", "prompt": "a red fox"}, ids of letters, digits, . and -, each once or nowhere'
    raise SettingsError(f"--prompt {path}: found in line {number} {found}; allowed: {allowed}")


def _read_parti(path: Path) -> list[str]:
    rows = csv.DictReader(io.StringIO(_read_text(path, "prompt_file")), delimiter="\t")
    try:
        prompts = [row["Prompt"] for row in rows if row.get("Prompt")]
    except csv.Error as error:
        raise SettingsError(
            f"--prompt_file {path}: found {error}; allowed: a TSV with a column 'Prompt'"
        ) from error
    if not prompts:
        raise SettingsError(
            f"--prompt_file {path}: found no prompts; allowed: a TSV with a column 'Prompt'"
        )
    return prompts


def _read_coco(path: Path, caption: str) -> list[str]:
    """Per image, in the order of the list `images`, its first annotation, as in the paper's repository, its longest, or
    all of them, in the order of the file."""
    text = _read_text(path, "prompt_file")
    try:
        content = json.loads(text)
        captions: dict[int, list[str]] = {}
        for annotation in content["annotations"]:
            captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
        pick = {
            "first": lambda own: own[:1],
            "longest": lambda own: [max(own, key=len)],
            "all": list,
        }[caption]
        prompts = [
            text
            for image in content["images"]
            if image["id"] in captions
            for text in pick(captions[image["id"]])
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"--prompt_file {path}: found {type(error).__name__} ({error}); allowed: COCO captions as JSON, "
            "with `images` (id) and `annotations` (image_id, caption)"
        ) from error
    if not prompts:
        raise SettingsError(
            f"--prompt_file {path}: found no captions; allowed: at least one image with a caption"
        )
    return prompts
