"""The settings of a run, as frozen dataclasses that are checked at birth.

A setting that does not apply to the chosen method is None; giving one is an error: it would have no effect.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from configs.acceptance import LanternSettings
from configs.fields import SettingsError, bounds, check_fields, refuse, setting, settings_dict
from configs.image_size import default_size, parse_size
from configs.methods import AdtSettings, MethodSettings, SamplingSettings
from configs.targets import MODELS, OWN_FLAGS, ROOT, parts_beside, refuse_foreign_flags

__all__ = [
    "AdtSettings",
    "LanternSettings",
    "MethodSettings",
    "ROOT",
    "RunSettings",
    "SamplingSettings",
    "SettingsError",
]

DATASETS = {
    "PartiPrompts": "PartiPrompts.tsv",
    "MSCOCO2017Val": "captions_val2017.json",
    "MSCOCO2017Train": "captions_train2017.json",
}
CLASSIFIER = (
    "attributes.safetensors"  # beside the tiny model's weights: what --quality judges images with
)
# What may differ between two commands that fill the same folder: it chooses images, not what an image is.
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
)


@dataclass(frozen=True)
class RunSettings:
    """Everything `generate_images` needs. Settings left None at birth are decided there, from the others."""

    group: ClassVar[str] = "Images"
    prompt: str = setting(
        "",
        f"a text, a file (.txt: a prompt per line; .jsonl: id and prompt), {' or '.join(DATASETS)}",
        shown="required",
    )
    prompt_file: str | None = setting(
        None, "file of the named dataset", shown="configs/prompts/<its name>"
    )
    caption: str | None = setting(
        None,
        "which captions of an image of MSCOCO2017Val or -Train are prompts",
        choices=("first", "longest", "all"),
        shown="first",
    )
    num_images: int | None = setting(
        None,
        "prompts to take from the list, -1 = all; of one text: images",
        low=-1,
        shown="text 1, .txt file and --slice all, dataset 10",
    )
    samples_per_prompt: int | None = setting(None, "images per prompt", low=1, shown="1")
    sample: int | None = setting(
        None, "take a random subset of this many prompts", low=1, shown="off"
    )
    sample_seed: int | None = setting(None, "which random subset", low=0, shown="0")
    slice: str | None = setting(
        None, "a-b: of the prompts taken, a (counted from 0) up to, not including, b", shown="all"
    )
    seed: int = setting(
        0,
        "base seed; an image's own seed follows from it, its prompt and sample number",
        low=0,
        high=2**63 - 1,
    )
    output_dir: str | None = setting(
        None, "folder of the images and records", shown="outputs/<named after the settings>"
    )
    overwrite: bool = setting(False, "remove an earlier run from --output_dir first")
    trace: bool = setting(False, "write one line per round to trace.jsonl")
    model: str = setting("tiny", "target model", choices=tuple(MODELS))
    model_path: str | None = setting(
        None,
        "its folder, or its owner/name on the Hugging Face hub",
        shown=", ".join(MODELS.values()),
    )
    drafter_path: str | None = setting(
        None, "the drafter's folder, or its owner/name", shown="<model_path>/drafter"
    )
    tokenizer_path: str | None = setting(
        None,
        "Chameleon's folder of text_tokenizer.json, vqgan.yaml and the VQGAN's weights",
        shown="<model_path>/tokenizer, or chameleon/tokenizer beside it",
    )
    target_size: str | None = setting(
        None,
        "image size in pixels, as 768 or 1024x576, of models that draw in many sizes",
        shown="that of the folder's name, such as Lumina-mGPT-7B-768, or 768",
    )
    text_encoder_path: str | None = setting(
        None, "LlamaGen's T5: a folder, or a hub id", shown="<model_path>/../t5/flan-t5-xl"
    )
    vq_path: str | None = setting(
        None, "LlamaGen's file of image codes", shown="<model_path>/../vq_ds16_t2i.pt"
    )
    dtype: str = setting("fp32", "number type", choices=("fp32", "fp64", "bf16"))
    device: str = setting("auto", "auto, cpu, cuda or cuda:N; auto = a GPU if there is one")
    device_map: str = setting(
        "single", "auto: the target's layers over all GPUs", choices=("single", "auto")
    )
    vq_device: str = setting("same", "where tokens become pixels: the target's device, or the CPU",
                             choices=("same", "cpu"))  # fmt: skip
    cfg_mode: str = setting(
        "parallel",
        "guidance rows of the target in one forward, or one after the other: less memory, more time",
        choices=("parallel", "sequential"),
    )
    batch_size: int = setting(1, "images decoded together", low=1, high=1024)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    method: MethodSettings = field(default_factory=MethodSettings)

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str) or not self.prompt.strip():
            refuse(
                "prompt",
                self.prompt,
                f"a text that is not blank, a .txt file, {', '.join(DATASETS)}",
            )
        check_fields(self)
        for name in (
            "output_dir",
            "model_path",
            "tokenizer_path",
            "drafter_path",
            "text_encoder_path",
            "vq_path",
            "prompt_file",
        ):  # a shell leaves ~ alone in --flag=~/x
            if getattr(self, name) is not None:
                object.__setattr__(self, name, os.path.expanduser(getattr(self, name)))
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", self.device):
            refuse("device", self.device, "auto, cpu, cuda, cuda:N")
        if self.device_map == "auto" and self.device != "auto":
            refuse(
                "device_map", "auto", f"only with --device auto, not with --device {self.device}"
            )
        if self.cfg_mode == "sequential" and self.sampling.cfg == 1:
            refuse("cfg_mode", "sequential", "parallel: with --cfg 1 there is one row")
        self._check_prompt()
        self._decide_counts()
        if self.drafter_path is not None and not self.method.drafted:
            refuse(
                "drafter_path",
                self.drafter_path,
                f"only with a method that has a drafter, not with --method {self.method.method}",
            )
        self._set("model_path", str(ROOT / MODELS[self.model]))
        self._place_parts()
        self._set(
            "drafter_path", str(Path(self.model_path) / "drafter") if self.method.drafted else None
        )
        self._set(
            "output_dir",
            f"outputs/{self.model}_{self.method.method}_{self._slug()}_{self.fingerprint()[:8]}",
        )

    @property
    def source(self) -> str:
        """What `prompt` is: "text", "file", or the name of a dataset."""
        if self.prompt in DATASETS:
            return self.prompt
        return "file" if self.prompt.lower().endswith((".txt", ".jsonl")) else "text"

    @property
    def slice_bounds(self) -> tuple[int, int] | None:
        """First index and the one behind the last, within the prompts taken."""
        return None if self.slice is None else bounds("slice", self.slice)

    def with_method(self, method: MethodSettings) -> "RunSettings":
        """The same run by another method, with this run's drafter or the default one where it needs one."""
        return replace(
            self, method=method, drafter_path=self.drafter_path if method.drafted else None
        )

    def identity(self) -> dict[str, object]:
        """The settings that make an image and its record what they are, by flag; paths are made absolute."""
        values = {
            name: value for name, value in settings_dict(self).items() if name not in FREE_FLAGS
        }
        paths = [
            "model_path",
            "tokenizer_path",
            "drafter_path",
            "text_encoder_path",
            "vq_path",
            "prices",
        ]
        paths += ["prompt"] if self.source == "file" else []
        return values | {
            name: os.path.realpath(values[name])
            for name in paths
            if os.path.exists(values.get(name) or "")
        }

    def fingerprint(self) -> str:
        """A hash of the identity."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()

    def _set(self, name: str, default: object) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, default)

    def _place_parts(self) -> None:
        refuse_foreign_flags(self)
        if self.model in OWN_FLAGS["target_size"]:
            self._set("target_size", default_size(self.model_path))
            try:
                parse_size(self.target_size)
            except ValueError as error:
                raise SettingsError(str(error)) from error
        for name, place in parts_beside(self.model, self.model_path).items():
            self._set(name, place)

    def _slug(self) -> str:
        name = Path(self.prompt).stem if self.source == "file" else self.prompt
        return re.sub(r"[^a-z0-9]+", "-", name.lower())[:24].strip("-") or "prompt"

    def _check_prompt(self) -> None:
        try:
            self.prompt.encode()
        except UnicodeEncodeError:
            refuse("prompt", self.prompt, "text in UTF-8")
        if self.prompt_file is not None and self.source not in DATASETS:
            refuse("prompt_file", self.prompt_file, f"only with --prompt {' or '.join(DATASETS)}")
        if self.caption is not None and not self.source.startswith("MSCOCO"):
            refuse("caption", self.caption, "only with --prompt MSCOCO2017Val or MSCOCO2017Train")
        if self.source == "text":
            for name in ("sample", "slice"):
                if getattr(self, name) is not None:
                    refuse(
                        name,
                        getattr(self, name),
                        "only with a list of prompts; --prompt is a single text",
                    )
        if self.slice is not None:
            bounds("slice", self.slice)
        if self.sample_seed is not None and self.sample is None:
            refuse("sample_seed", self.sample_seed, "only with --sample")

    def _decide_counts(self) -> None:
        """Settle num_images (prompts taken; images for a single text) and samples_per_prompt."""
        if self.num_images == 0:
            refuse("num_images", 0, "-1 (all) or at least 1")
        if self.sample is not None and self.num_images not in (None, -1):
            refuse(
                "num_images",
                self.num_images,
                "not together with --sample, which says how many prompts to take",
            )
        if self.source == "text":
            given = None if self.num_images == -1 else self.num_images
            if None not in (given, self.samples_per_prompt) and given != self.samples_per_prompt:
                refuse(
                    "samples_per_prompt",
                    self.samples_per_prompt,
                    f"--num_images, {given}, for a single text",
                )
            images = given or self.samples_per_prompt or 1
            object.__setattr__(self, "num_images", images)
            self._set("samples_per_prompt", images)
        everything = self.source == "file" or self.sample is not None or self.slice is not None
        self._set("num_images", -1 if everything else 10)
        self._set("samples_per_prompt", 1)
        self._set("sample_seed", 0 if self.sample is not None else None)
