"""Which images a run makes: their prompts, the numbers that name them, and how many of each.

Does not import torch.
"""

import difflib
import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.fields import Flag, found_at, mismatch, one_of, refuse
from configs.schema import DATASETS, PromptSettings
from configs.targets import ROOT
from runs.prompt_files import read_coco, read_jsonl, read_parti, read_text_lines

_COCO = "http://images.cocodataset.org/annotations/annotations_trainval2017.zip"
_PARTI = "https://raw.githubusercontent.com/google-research/parti/main/PartiPrompts.tsv"
# A prompt without a space that has a path separator, or ends as a file of data. Not in other
# scripts than Latin's: some write whole sentences without a space.
_PATH = re.compile(
    r"[!-~]*/[!-~]*|\S+\.(csv|tsv|json|ya?ml|md|parquet|arrow|xlsx?|tar|t?gz|zip|png|jpe?g|webp)",
    re.IGNORECASE,
)
_ABSENT = ("MSCOCO2014Val", "SJDPrompts")  # data sets of related programs


@dataclass(frozen=True)
class PromptItem:
    """One image to make."""

    prompt: str
    number: int  # the prompt's place in the whole list, from 0
    sample: int  # the image's number among those of its prompt, from 0
    occurrence: int  # how many earlier prompts of the whole list are the same text
    name: str | None = None  # the prompt's own id, if it has one

    @property
    def id(self) -> str:
        """The image's name, the same whichever other images are made."""
        return f"{self.name or format(self.number, '05d')}_{self.sample}"


def prompt_items(settings: PromptSettings) -> list[PromptItem]:
    """Return a run's images, prompt by prompt."""
    return chosen_items(settings, all_prompts(settings))


def all_prompts(settings: PromptSettings) -> list[PromptItem]:
    """Return the first image of every prompt in a run's list."""
    names: Sequence[str | None] | None = None
    if settings.source == "text":
        _refuse_name(settings.prompt)
        prompts = [settings.prompt]
    elif settings.source != "file":
        prompts = _data_set(settings)
    elif settings.prompt.lower().endswith(".jsonl"):
        names, prompts = read_jsonl(Path(settings.prompt))
    else:
        prompts = read_text_lines(Path(settings.prompt))
    return numbered(prompts, names)


def chosen_items(settings: PromptSettings, prompts: Sequence[PromptItem]) -> list[PromptItem]:
    """Return a run's images of its list, prompt by prompt."""
    if settings.source != "text":
        prompts = [prompts[number] for number in _chosen(settings, len(prompts))]
    return samples(prompts, settings.samples_per_prompt)


def samples(items: Sequence[PromptItem], count: int) -> list[PromptItem]:
    """Return `count` images of every prompt, prompt by prompt."""
    return [replace(item, sample=sample) for item in items for sample in range(count)]


def numbered(prompts: Sequence[str], names: Sequence[str | None] | None = None) -> list[PromptItem]:
    """Return the first image of every prompt. names: the prompts' own ids, if they have some."""
    seen: Counter[str] = Counter()
    items = []
    for number, prompt in enumerate(prompts):
        # Equal prompts differ in `occurrence`, and so in seed and image (decoding/seeds.py).
        items.append(PromptItem(prompt, number, 0, seen[prompt], names[number] if names else None))
        seen[prompt] += 1
    return items


def _data_set(settings: PromptSettings) -> list[str]:
    """Return the prompts of a named data set; a SettingsError says where users get its file."""
    default = ROOT / "configs" / "prompts" / DATASETS[settings.source]
    path = Path(settings.prompt_file) if settings.prompt_file is not None else default
    parti = settings.source == "PartiPrompts"
    if not path.is_file():
        expected = f"{default} or --prompt_file"
        source = _PARTI if parti else f"annotations/{default.name} in {_COCO}"
        advice = f"Get it from {source}, or run scripts/get_prompts.sh."
        raise mismatch(Flag("prompt", settings.source), f"no file {path}", expected, advice)
    return read_parti(path) if parti else read_coco(path, settings.caption or "first")


def _chosen(settings: PromptSettings, total: int) -> list[int]:
    """Return the prompts' numbers, ascending: of --num_images or --sample those in --slice."""
    numbers = list(range(total))
    allowed = f"1 to {total}, the prompts of {settings.prompt}"
    if settings.sample is not None:
        if settings.sample > total:
            refuse("sample", settings.sample, allowed)
        # ranked by a hash, since the order of `random.sample` is not promised between versions of
        # Python: a subset contains all smaller ones of its seed, on every machine
        texts = {number: f"{settings.sample_seed}:{number}".encode() for number in numbers}
        ranked = sorted(numbers, key=lambda number: hashlib.sha256(texts[number]).digest())
        numbers = sorted(ranked[: settings.sample])
    elif settings.num_images != -1:
        if settings.num_images > total:
            refuse("num_images", settings.num_images, f"-1 (all) or {allowed}")
        numbers = numbers[: settings.num_images]
    return [numbers[index] for index in settings.sliced(len(numbers))]


def _refuse_name(prompt: str) -> None:
    """Refuse the name of a data set or file, rather than generate an image of the name."""
    names = [name.lower() for name in (*DATASETS, *_ABSENT)]
    near = difflib.get_close_matches(prompt.strip().lower(), names, 1, 0.85)
    if near and len(prompt.split()) == 1:
        named = f"{one_of(DATASETS)}, written like this"
        refuse("prompt", prompt, f"{named}, a .txt file, or a text of several words")
    there = os.path.isfile(prompt) or os.path.isdir(prompt)
    if re.search(r"\w", prompt) and (there or _PATH.fullmatch(prompt)):
        what = f"is {found_at(prompt)} here" if there else "looks like a missing file"
        expected = "an existing prompt file (.txt or .jsonl) or a text"
        advice = (
            'Write prompts of your own as .jsonl, one {"prompt": ...} a line. If this word is your '
            "prompt, put it into a .txt file."
        )
        raise mismatch(Flag("prompt"), f"{prompt!r}, which {what}", expected, advice)
