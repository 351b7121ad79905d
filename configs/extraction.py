"""Settings of `extract_tokens`: it turns captioned images, or the target's samples, into tokens."""

import os
from dataclasses import MISSING, dataclass
from pathlib import Path

from configs.fields import Flag, Settings, flags_in, in_checkout, missing, part, refuse, setting
from configs.methods import MethodSettings
from configs.model import SamplingSettings
from configs.rules import lossless_rules
from configs.schema import RunSettings
from configs.targets import ROOT

TRAINING_SET = "MSCOCO2017Train"
OWN_CAPTIONS = "captions of the training split"  # stands for --prompt where none is given
# What models are judged by: named data sets, and files.
JUDGED = ("PartiPrompts", "MSCOCO2017Val")
JUDGED_FILES = tuple(
    ROOT / "configs" / "prompts" / f"tiny_{split}.txt" for split in ("test", "validation")
)
# Flags that say what the target draws, and how.
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
    "compile",
    "batch_size",
    *flags_in(MethodSettings),
    *flags_in(SamplingSettings),
)


@dataclass(frozen=True)
class ExtractionSettings(Settings, group="Tokens"):
    """Where image tokens come from and go to."""

    # the target and its files; with --from_prompts also what is drawn and how
    run: RunSettings = part(RunSettings)
    data_dir: str | None = setting(
        "images with captions: a folder of images, each with a .txt of its name; or a .jsonl file, "
        "or a folder with one, of lines with image and caption",
        path=True,
    )
    from_prompts: bool = setting("take samples that the target generates, not images", False)
    prompt: str | None = setting(
        f"for --from_prompts: a .txt or .jsonl file, or {TRAINING_SET}",
        shown=f"tiny: {OWN_CAPTIONS}; others: required",
    )
    num_images: int | None = setting(
        "samples to generate; when every prompt has one, they begin again with other seeds",
        low=1,
        shown="required with --from_prompts",
    )
    output_dir: str = setting(
        "folder of the token shards; the same command continues",
        MISSING,
        path=True,
        wanted="a folder for the token shards",
    )

    def settle(self) -> None:
        if self.run.engine.quantize is not None:
            allowed = "no quantised target: drafters learn from the target's own weights"
            refuse("quantize", self.run.engine.quantize, allowed)
        if self.data_dir is not None:
            if not Path(self.data_dir).exists():
                refuse("data_dir", self.data_dir, "a folder or a .jsonl file")
            if os.path.realpath(self.data_dir) == os.path.realpath(self.output_dir):
                refuse("output_dir", self.output_dir, "another folder than --data_dir")
        if not self.from_prompts:
            return
        allowed = f"{TRAINING_SET}, or a .txt or .jsonl file"
        if self.num_images is None:
            raise missing(Flag("num_images"), "the number of images for --from_prompts")
        if self.prompt is None and self.run.engine.model != "tiny":
            raise missing(Flag("prompt"), f"{allowed}, with --model {self.run.engine.model}")
        if self.prompt is not None and _judged(self.prompt):
            allowed += ", but not the prompts that models are judged by"
            refuse("prompt", self.prompt, allowed)
        if not self.run.engine.method.lossless:
            allowed = f"{', '.join(lossless_rules())}: drafters learn the target's distribution"
            refuse("verifier", self.run.engine.method.verifier, allowed)


def _judged(prompt: str) -> bool:
    path = in_checkout(os.path.expanduser(prompt))
    return prompt in JUDGED or Path(os.path.realpath(path)) in JUDGED_FILES
