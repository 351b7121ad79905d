"""The settings of a run: prompts, model, method and output, as `generate_images` takes them.

All settings of its parts can be imported from here: `as` says so.
"""

import hashlib
import json
import os
import re
from dataclasses import MISSING, dataclass, replace
from pathlib import Path

from configs.fields import (
    Settings,
    Values,
    bounds,
    in_checkout,
    one_of,
    part,
    refuse,
    setting,
    settings_dict,
)
from configs.fields import SettingsError as SettingsError
from configs.methods import AdtSettings as AdtSettings
from configs.methods import MethodSettings
from configs.model import EngineSettings
from configs.model import SamplingSettings as SamplingSettings
from configs.rules import LanternSettings as LanternSettings
from configs.targets import ROOT as ROOT

DATASETS = {
    "PartiPrompts": "PartiPrompts.tsv",
    "MSCOCO2017Val": "captions_val2017.json",
    "MSCOCO2017Train": "captions_train2017.json",
}
# Next to the tiny model's weights: the classifier that `evaluate` judges images with.
CLASSIFIER = "attributes.safetensors"
# What may differ between two commands that fill the same folder: it chooses images, not what an
# image is.
# The last three may round differently, as two machines may: a near-tie can go the other way.
FREE_FLAGS = (
    "num_images",
    "samples_per_prompt",
    "sample",
    "sample_seed",
    "slice",
    "batch_size",
    "trace",
    "output_dir",
    "overwrite",
    "prompt_file",
    "cfg_mode",
    "device_map",
    "compile",
)
_TAKEN = "the number of prompts taken"
_PATHS = ("model_path", "tokenizer_path", "drafter_path", "text_encoder_path", "vq_path")


@dataclass(frozen=True)
class PromptSettings(Settings, group="Prompts"):
    """What to draw, how many images of it, and from which seed."""

    prompt: str = setting(
        f"text, .txt file (a prompt a line), .jsonl file (id, prompt); or {one_of(DATASETS)}",
        MISSING,
        wanted=f"text that is not blank, a .txt or .jsonl file, {one_of(DATASETS)}",
    )
    prompt_file: str | None = setting(
        "file of the named dataset", path=True, shown="configs/prompts/<its name>"
    )
    caption: str | None = setting(
        "which captions of an image of MSCOCO2017Val or -Train are prompts",
        choices=("first", "longest", "all"),
        shown="first",
    )
    num_images: int = setting(
        "prompts to use from a list, -1 = all; with a single text: images",
        low=-1,
        shown="text 1, .txt file and --slice all, dataset 10",
    )
    samples_per_prompt: int = setting("images per prompt", low=1, shown="1")
    sample: int | None = setting("size of a random subset of the prompts", low=1)
    sample_seed: int | None = setting("which random subset", low=0, shown="0")
    slice: str | None = setting(
        "prompts to use, as start-stop (0-based, stop excluded), e.g. 0-100; or a part of them, as "
        "2/8, the second of eight",
        shown="all",
    )
    seed: int = setting(
        "base seed; each image derives its seed from this, its prompt and its number",
        0,
        low=0,
        high=2**63 - 1,
    )

    def settle(self) -> None:
        self._check_prompt()
        if self.source == "file":
            self.put(prompt=in_checkout(self.prompt))
        self._check_counts()
        images = None if self.num_images == -1 else self.num_images
        if self.source == "text":  # the images of a single text are its samples
            images = images or self.samples_per_prompt or 1
            self.put(num_images=images, samples_per_prompt=self.samples_per_prompt or images)
        everything = self.source == "file" or self.sample is not None or self.slice is not None
        self.fill(num_images=-1 if everything else 10, samples_per_prompt=1)
        if self.sample is not None:
            self.fill(sample_seed=0)

    @property
    def source(self) -> str:
        """What `prompt` is: "text", "file", or the name of a dataset."""
        if self.prompt in DATASETS:
            return self.prompt
        return "file" if self.prompt.lower().endswith((".txt", ".jsonl")) else "text"

    def sliced(self, total: int) -> range:
        """Return the indices that --slice chooses of the prompts taken; all without it."""
        if self.slice is None:
            return range(total)
        number, parts = _part(self.slice)
        if parts > total:
            refuse("slice", self.slice, f"part/parts with parts up to {total}, {_TAKEN}")
        if parts:
            return range(total * (number - 1) // parts, total * number // parts)
        first, end = bounds("slice", self.slice, ", or a part such as 2/8")
        if end > total:
            refuse("slice", self.slice, f"start-stop with stop up to {total}, {_TAKEN}")
        return range(first, end)

    def _check_prompt(self) -> None:
        """Refuse a prompt that is no text, and what its kind of source does not have."""
        try:
            self.prompt.encode()
        except UnicodeEncodeError:
            refuse("prompt", self.prompt, "text in UTF-8")
        if self.prompt_file is not None and self.source not in DATASETS:
            refuse("prompt_file", self.prompt_file, f"only with --prompt {one_of(DATASETS)}")
        if self.caption is not None and not self.source.startswith("MSCOCO"):
            refuse("caption", self.caption, "only with --prompt MSCOCO2017Val or MSCOCO2017Train")
        for name in ("sample", "slice"):
            if self.source == "text" and (value := getattr(self, name)) is not None:
                refuse(name, value, "only with a list of prompts; --prompt is a single text")

    def _check_counts(self) -> None:
        """Refuse numbers of images and prompts that contradict each other."""
        images, samples = self.num_images, self.samples_per_prompt
        if images == 0:
            refuse("num_images", 0, "-1 (all) or at least 1")
        if self.sample is not None and images not in (None, -1):
            allowed = "only without --sample, which says how many prompts to take"
            refuse("num_images", images, allowed)
        if self.sample_seed is not None and self.sample is None:
            refuse("sample_seed", self.sample_seed, "only with --sample")
        self.sliced(10**9)  # refuses a text that is neither
        if self.source == "text" and samples not in (None, images) and images not in (None, -1):
            refuse("samples_per_prompt", samples, f"{images}, as --num_images, for a single text")


def _part(text: str) -> tuple[int, int]:
    """Return the two numbers of `2/8`; zeros for a text without a slash."""
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    number, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if match and not 1 <= number <= parts:
        refuse("slice", text, "part/parts, such as 2/8 for the second of eight parts")
    return number, parts


@dataclass(frozen=True)
class RunSettings(Settings, group="Output"):
    """Everything `generate_images` needs. What is None at first is decided from the rest."""

    prompts: PromptSettings = part(PromptSettings)
    engine: EngineSettings = part(EngineSettings)
    output_dir: str = setting(
        "folder for images and records", path=True, shown="outputs/<named after the settings>"
    )
    overwrite: bool = setting("delete an earlier run in --output_dir first", False)
    trace: bool = setting("write one line per round to trace.jsonl", False)

    def settle(self) -> None:
        if self.output_dir is not None:
            return
        prompts, engine = self.prompts, self.engine
        name = Path(prompts.prompt).stem if prompts.source == "file" else prompts.prompt
        name = re.sub(r"[^a-z0-9]+", "-", name.lower())[:24].strip("-") or "prompt"
        number = self.fingerprint()[:8]
        self.put(output_dir=f"outputs/{engine.model}_{engine.method.method}_{name}_{number}")

    def with_method(self, method: MethodSettings) -> "RunSettings":
        """Return the same run by another method; it keeps the drafter if it needs one."""
        return replace(self, engine=self.engine.with_method(method))

    def identity(self) -> Values:
        """Return the settings, by flag, that make an image and its record what they are.

        Paths of files that exist are absolute.
        """
        paths = (*_PATHS, "prompt") if self.prompts.source == "file" else _PATHS
        values: Values = {}
        for name, value in settings_dict(self).items():
            if value is not None and name not in FREE_FLAGS:
                found = name in paths and os.path.exists(value)
                values[name] = os.path.realpath(value) if found else value
        return values

    def fingerprint(self) -> str:
        """Return a hash of the identity that stays the same when the working folder moves."""
        values = {name: _movable(value) for name, value in self.identity().items()}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _movable(value: object) -> object:
    """Return a path in the working folder or the checkout relative to it, other values as given."""
    for home in (os.path.realpath("."), str(ROOT)):
        if isinstance(value, str) and value.startswith(home + os.sep):
            return os.path.relpath(value, home)
    return value
