"""The settings that open a model: its files, its drafter, where and how it computes."""

import re
from dataclasses import dataclass
from pathlib import Path

from configs.fields import Settings, part, refuse, setting
from configs.methods import MethodSettings
from configs.sampling import SamplingSettings
from configs.targets import (
    ROOT,
    TARGETS,
    inner_folder,
    parse_size,
    refuse_foreign_flags,
    targets_with,
)

# Settings that change how long images take, not the images; and their defaults.
TIMED = {"batch_size": 1, "cfg_mode": "parallel", "compile": "auto", "device_map": "single"}
INDUCTOR = "inductor"  # what --compile says for torch's own compiler


@dataclass(frozen=True)
class CodecSettings(Settings, group="Model"):
    """Whose image codes, and where the files lie that turn them into pixels."""

    model: str = setting("target model", "tiny", choices=tuple(TARGETS))
    model_path: str | None = setting(
        "folder of the target, or owner/name on the Hugging Face hub",
        path=True,
        shown=", ".join(target.folder for target in TARGETS.values()),
    )
    tokenizer_path: str | None = setting(
        "folder of Chameleon's text_tokenizer.json, vqgan.yaml and VQGAN weights",
        path=True,
        shown="<model_path>/tokenizer, or chameleon/tokenizer next to <model_path>",
    )
    vq_path: str | None = setting(
        "image codec of LlamaGen or Lumina-mGPT 2.0, a file",
        path=True,
        shown="<model_path>/../vq_ds16_t2i.pt; lumina_mgpt2 <model_path>/../movqgan_270M.ckpt",
    )

    def settle(self) -> None:
        refuse_foreign_flags(self)
        target = TARGETS[self.model]
        default = ROOT / target.folder
        self.fill(model_path=str(default))
        given = Path(self.model_path)
        if (inner := inner_folder(given, default.name)) != given:
            self.put(model_path=str(inner))
        parts = target.parts_next_to(self.model_path)
        self.fill(**{flag: path for flag, path in parts.items() if hasattr(self, flag)})


@dataclass(frozen=True)
class ModelSettings(CodecSettings):
    """A target model, where its files lie and the number type it computes in."""

    text_encoder_path: str | None = setting(
        "LlamaGen's T5: a folder, or its owner/name",
        path=True,
        shown="<model_path>/../t5/flan-t5-xl",
    )
    target_size: str | None = setting(
        f"image size in pixels, as 768 or 1024x576; only {', '.join(targets_with('target_size'))}",
        shown="the size in the folder's name, such as Lumina-mGPT-7B-768, or 768; emu3 720; emu3_5 "
        "1168x880; glm_image 1024",
    )
    negative_prompt: str | None = setting(
        f"text to guide away from; only {', '.join(targets_with('negative_prompt'))}",
        shown="the one of Emu3's public script",
    )
    dtype: str = setting("number type", "fp32", choices=("fp32", "fp64", "bf16"))

    def settle(self) -> None:
        if (sizes := TARGETS[self.model].sizes) is not None:
            self.fill(target_size=sizes.usual(self.model_path))
            parse_size(self.target_size, sizes)
        self.fill(negative_prompt=TARGETS[self.model].negative_prompt)


@dataclass(frozen=True)
class LoadedSettings(ModelSettings):
    """How the target's weights are stored, and where the drafter's are."""

    quantize: str | None = setting(
        "store the target's layers as int8, or int4 (CUDA and bf16 only); needs torchao",
        choices=("int8", "int4"),
    )
    drafter_path: str | None = setting(
        "folder of the drafter, or owner/name", path=True, shown="<model_path>/drafter"
    )

    def settle(self) -> None:
        if self.quantize is not None and self.dtype == "fp64":
            refuse("quantize", self.quantize, "only with --dtype bf16 or fp32")
        if self.quantize == "int4" and self.dtype != "bf16":
            refuse("quantize", "int4", f"int8 with --dtype {self.dtype}; int4 only with bf16")


@dataclass(frozen=True)
class DeviceSettings(Settings, group="Machine"):
    """Where a command computes."""

    device: str = setting("auto (a GPU if there is one), cpu, cuda or cuda:N", "auto")

    def settle(self) -> None:
        # torch takes no :007, and reads :300 as another number
        if not re.fullmatch(r"auto|cpu|cuda(:(0|[1-9][0-9]?))?", self.device):
            refuse("device", self.device, "auto, cpu, cuda, cuda:N")


@dataclass(frozen=True)
class PlacementSettings(DeviceSettings):
    """How a target is laid over the machine, and how many images it makes at once."""

    device_map: str = setting(
        "auto = split the target's layers over all GPUs", "single", choices=("single", "auto")
    )
    vq_device: str = setting(
        "device that decodes image codes to pixels: the target's, or the CPU",
        "same",
        choices=("same", "cpu"),
    )
    cfg_mode: str = setting(
        "guidance rows in one forward pass, or in sequence (less memory, more time)",
        "parallel",
        choices=("parallel", "sequential"),
    )
    batch_size: int = setting("images decoded together", 1, low=1, high=1024)

    def settle(self) -> None:
        if self.device_map == "auto" and self.device != "auto":
            allowed = f"only with --device auto, not with --device {self.device}"
            refuse("device_map", "auto", allowed)


@dataclass(frozen=True)
class EngineSettings(PlacementSettings, LoadedSettings):
    """All that it takes to load a model and decode with it; prompts are no part of it."""

    sampling: SamplingSettings = part(SamplingSettings)
    method: MethodSettings = part(MethodSettings)
    compile: str | None = setting(
        f"CUDA graphs on a GPU, compiled layers on a CPU; auto = where possible; {INDUCTOR} = "
        "also small steps by torch.compile, on a GPU",
        choices=("off", "on", "auto", INDUCTOR),
        shown="auto",
    )

    def settle(self) -> None:
        if self.compile in ("on", INDUCTOR) and self.device_map == "auto":
            refuse("compile", self.compile, "only on one device, not with --device_map auto")
        if self.quantize is not None and self.device_map == "auto":
            refuse("quantize", self.quantize, "only with --device_map single")
        if self.quantize == "int4" and self.device == "cpu":
            refuse("quantize", "int4", "int8 with --device cpu")
        if self.cfg_mode == "sequential" and self.sampling.cfg == 1:
            refuse("cfg_mode", "sequential", "parallel with --cfg 1, where an image has one row")
        if self.method.drafted:
            self.fill(drafter_path=str(Path(self.model_path) / "drafter"))
        elif self.drafter_path is not None:
            allowed = "only with a method that has a drafter, not with --method "
            refuse("drafter_path", self.drafter_path, allowed + self.method.method)
