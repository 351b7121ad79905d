"""Settings of `extract_tokens`: images with captions, or the target's own samples, that become token shards."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from configs.fields import SettingsError, check_fields, refuse, setting, settings_fields
from configs.methods import AdtSettings, MethodSettings, SamplingSettings
from configs.schema import RunSettings
from configs.targets import ROOT

TRAINING_SET = "MSCOCO2017Train"
OWN_CAPTIONS = "captions of the training split"  # stands for --prompt where none is given
# What models are judged by: named data sets, and files.
JUDGED = ("PartiPrompts", "MSCOCO2017Val")
JUDGED_FILES = tuple(
    ROOT / "configs" / "prompts" / f"tiny_{split}.txt" for split in ("test", "validation")
)
# Flags that say how the target draws, and what.
OF_SAMPLES = (
    "prompt",
    "prompt_file",
    "caption",
    "num_images",
    "seed",
    "drafter_path",
    "dtype",
    "device_map",
    "cfg_mode",
    "batch_size",
    *settings_fields(MethodSettings),
    *settings_fields(AdtSettings),
    *settings_fields(SamplingSettings),
)


@dataclass(frozen=True)
class ExtractionSettings:
    """Where the codes come from and go to. run: the target and its files; for own samples, what is drawn and how."""

    group: ClassVar[str] = "Tokens"
    run: RunSettings
    data_dir: str | None = setting(
        None,
        "images with captions: a folder of images, each with a .txt beside it; a .jsonl file, or a folder with one, of "
        "lines with image and caption; a WebDataset .tar, or a folder of them",
        shown="off",
    )
    from_prompts: bool = setting(False, "take the target's own samples in place of images")
    prompt: str | None = setting(
        None,
        f"of own samples: a .txt or .jsonl file, or {TRAINING_SET}",
        shown=f"tiny: {OWN_CAPTIONS}; others: required",
    )
    num_images: int | None = setting(
        None,
        "own samples; when all prompts have one, they come again with other seeds",
        low=1,
        shown="required with --from_prompts",
    )
    output_dir: str = setting(
        "", "folder of the token shards; the same command continues", shown="required"
    )

    def __post_init__(self) -> None:
        if not self.output_dir.strip():
            raise SettingsError("--output_dir: missing; allowed: a folder for the token shards")
        check_fields(self)
        for name in ("data_dir", "output_dir"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, os.path.expanduser(getattr(self, name)))
        if self.data_dir is not None and not Path(self.data_dir).exists():
            refuse(
                "data_dir", self.data_dir, "a folder, a .jsonl file or a .tar file that is there"
            )
        if self.data_dir is not None and os.path.realpath(self.data_dir) == os.path.realpath(
            self.output_dir
        ):
            refuse("output_dir", self.output_dir, "another folder than --data_dir")
        if self.from_prompts:
            self._check_samples()

    def _check_samples(self) -> None:
        allowed = f"{TRAINING_SET}, or a .txt or .jsonl file"
        if self.num_images is None:
            raise SettingsError(
                "--num_images: missing; allowed: how many samples --from_prompts draws"
            )
        if self.prompt is None and self.run.model != "tiny":
            raise SettingsError(
                f"--prompt: missing; allowed with --model {self.run.model}: {allowed}"
            )
        if self.prompt is not None and _judged(self.prompt):
            refuse(
                "prompt", self.prompt, f"{allowed}, but not the prompts that models are judged by"
            )
        if not self.run.method.lossless:
            refuse(
                "verifier",
                self.run.method.verifier,
                "exact, rejection, sampled: drafters learn the target's law",
            )


def _judged(prompt: str) -> bool:
    path = Path(prompt).expanduser()
    return prompt in JUDGED or any(
        path.is_file() and path.samefile(file) for file in JUDGED_FILES if file.exists()
    )
