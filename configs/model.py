"""The settings that open a model: its files, its drafter, how tokens are drawn, and where."""

import ctypes
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from configs.fields import Settings, part, refuse, setting
from configs.methods import MethodSettings
from configs.targets import (
    TARGETS,
    model_place,
    own_flags,
    parse_size,
    refuse_foreign_flag,
    targets_with,
    unguided_targets,
)

# Settings that change how long images take, not the images; and their defaults.
TIMED = {"batch_size": 1, "cfg_mode": "parallel", "compile": "auto", "device_map": "single"}
INDUCTOR = "inductor"  # what --compile says for torch's own compiler
SAME_BITS = "same_bits"  # and for sums that do not depend on the number of tokens in a pass
HALF = ("fp16", "float16", "half")  # names of the number type that no model here can use
# Rows of a forward pass for which torch's int4 kernel reads the weights once.
INT4_ROWS = 16


def device_setting() -> Any:
    """Declare --device."""
    return setting(
        "auto (a GPU if there is one), cpu, cuda or cuda:N",
        "auto",
        # torch takes no :007, and reads :300 as another number
        pattern=r"auto|cpu|cuda(:(0|[1-9][0-9]?))?",
        wanted="auto, cpu, cuda, cuda:N",
        group="Machine",
    )


@cache
def sees_gpu() -> bool:
    """Return whether torch sees a GPU; only where there is a driver is it imported to ask."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    import torch

    return torch.cuda.device_count() > 0


def on_gpu(device: str) -> bool:
    """Return whether --device chooses a GPU on this machine."""
    return device != "cpu" and (device != "auto" or sees_gpu())


@dataclass(frozen=True)
class SamplingSettings(Settings, group="Sampling"):
    """The sampling distribution: guidance, then temperature, then top-k, then top-p."""

    cfg: float = setting(
        "guidance scale, 1 = no guidance",
        3.0,
        above=0,  # 0 switches guidance off in other programs, but here it would ignore the prompt
        high=100,
        wanted="1 for no guidance, or another number above 0, at most 100",
        shown=lambda: f"3.0; {' and '.join(unguided_targets())} 1, which have no guidance",
    )
    temperature: float = setting("sampling temperature, 0 = argmax", 1.0, low=0, high=100)
    top_k: int = setting("sample from the k likeliest codes, 0 = off", 0, low=0)
    top_p: float = setting(
        "sample from the likeliest codes with this total probability; 1 = off", 1.0, above=0, high=1
    )

    def settle(self) -> None:
        if 0 < self.temperature < 1e-3:
            refuse("temperature", self.temperature, "0 (argmax), or 0.001 to 100")

    @property
    def guidance(self) -> int:
        """Guidance rows per image: 2 with guidance, 1 without."""
        return 1 if self.cfg == 1 else 2


@dataclass(frozen=True)
class EngineSettings(Settings, group="Model"):
    """All that it takes to load a model and decode with it; prompts are no part of it."""

    model: str = setting("target model", "tiny", choices=TARGETS)
    model_path: str = setting(
        "folder of the target, or owner/name on the Hugging Face hub",
        path=True,
        shown=lambda: ", ".join(target.folder for target in TARGETS.values()),
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
    text_encoder_path: str | None = setting(
        "LlamaGen's T5: a folder, or its owner/name",
        path=True,
        shown="<model_path>/../t5/flan-t5-xl",
    )
    target_size: str | None = setting(
        lambda: (
            "image size in pixels, as 768 or 1024x576; only "
            f"{', '.join(targets_with('target_size'))}"
        ),
        shown="the size in the folder's name, such as Lumina-mGPT-7B-768, or 768; emu3 720; emu3_5 "
        "1168x880; glm_image 1024",
    )
    negative_prompt: str | None = setting(
        lambda: f"text to guide away from; only {', '.join(targets_with('negative_prompt'))}",
        shown="the one of Emu3's public script",
    )
    dtype: str = setting(
        "number type",
        choices=("fp32", "fp64", "bf16"),
        hints=dict.fromkeys(HALF, "The values of these models overflow in fp16; use bf16."),
        shown="bf16 on a GPU, fp32 on a CPU",
    )
    quantize: str | None = setting(
        "store the target's layers as int8, or int4 (CUDA and bf16 only), by torchao; or multiply "
        "in fp8 (H100, H200, RTX 4090, L4 and later)",
        choices=("int8", "int4", "fp8"),
    )
    drafter_path: str | None = setting(
        "folder of the drafter, or owner/name", path=True, shown="<model_path>/drafter"
    )
    device: str = device_setting()
    device_map: str = setting(
        "auto = split the target's layers over all GPUs",
        "single",
        choices=("single", "auto"),
        group="Machine",
    )
    vq_device: str = setting(
        "device that decodes image codes to pixels: the target's, or the CPU",
        "same",
        choices=("same", "cpu"),
        group="Machine",
    )
    cfg_mode: str = setting(
        "guidance rows in one forward pass, or in sequence (less memory, more time)",
        "parallel",
        choices=("parallel", "sequential"),
        group="Machine",
    )
    batch_size: int = setting("images decoded together", 1, low=1, high=1024, group="Machine")
    compile: str = setting(
        f"CUDA graphs on a GPU, compiled layers on a CPU; auto = where possible; {INDUCTOR} = "
        f"also small steps by torch.compile, on a GPU; {SAME_BITS} = on a GPU in bf16, a token's "
        "sums do not depend on the other tokens of a pass",
        "auto",
        choices=("off", "on", "auto", INDUCTOR, SAME_BITS),
        group="Machine",
    )
    sampling: SamplingSettings = part(SamplingSettings)
    method: MethodSettings = part(MethodSettings)

    def settle(self) -> None:
        for flag in own_flags():
            refuse_foreign_flag(self.model, flag, getattr(self, flag))
        if not TARGETS[self.model].guided and self.sampling.cfg != 1:
            wanted = f"1 with --model {self.model}, which has no guidance"
            refuse("cfg", self.sampling.cfg, wanted)
        if self.dtype is None:
            self.put(dtype="bf16" if on_gpu(self.device) else "fp32")
        self._decide_files()
        self._decide_drafter()
        self._check_machine()
        if self.quantize is not None:
            self._check_quantized(self.quantize)

    def _decide_files(self) -> None:
        """Decide where the target's files are, and the size and the text that they bring."""
        target = TARGETS[self.model]
        self.put(model_path=model_place(self.model, self.model_path))
        self.fill(**target.parts_next_to(self.model_path), negative_prompt=target.negative_prompt)
        if target.sizes is not None:
            self.fill(target_size=target.sizes.usual(self.model_path))
            parse_size(str(self.target_size), target.sizes)

    def _decide_drafter(self) -> None:
        """Take what is given, or else the folder `drafter` of the model's; or no drafter."""
        if self.method.drafted:
            self.fill(drafter_path=str(Path(self.model_path) / "drafter"))
        elif self.drafter_path is not None:
            allowed = "only with a method that has a drafter, not with --method "
            refuse("drafter_path", self.drafter_path, allowed + self.method.method)

    def _check_machine(self) -> None:
        if self.device_map == "auto" and self.device != "auto":
            allowed = f"only with --device auto, not with --device {self.device}"
            refuse("device_map", "auto", allowed)
        if self.compile in ("on", INDUCTOR, SAME_BITS) and self.device_map == "auto":
            refuse("compile", self.compile, "only on one device, not with --device_map auto")
        if self.compile == SAME_BITS and self.dtype != "bf16":
            refuse(
                "compile", self.compile, f"only with --dtype bf16, not with --dtype {self.dtype}"
            )
        if self.cfg_mode == "sequential" and self.sampling.cfg == 1:
            refuse("cfg_mode", "sequential", "parallel with --cfg 1, where an image has one row")

    def _check_quantized(self, kind: str) -> None:
        if self.dtype == "fp64":
            refuse("quantize", kind, "only with --dtype bf16 or fp32")
        if self.device_map == "auto":
            refuse("quantize", kind, "only with --device_map single")
        if kind == "fp8" and self.dtype == "fp32" and on_gpu(self.device):
            refuse("quantize", kind, "only with --dtype bf16 on a GPU, whose products are in bf16")
        if kind != "int4":
            return
        if self.dtype != "bf16":
            refuse("quantize", kind, f"int8 with --dtype {self.dtype}; int4 only with bf16")
        if self.device == "cpu":
            refuse("quantize", kind, "int8 with --device cpu")
        images = self.batch_size * self.sampling.guidance
        rows = images * (1 + self.method.drafts)
        if self.method.speculative and rows > INT4_ROWS:
            least = INT4_ROWS // images - 1
            drafts = f", or with --method jacobi --window {least}" if least > 0 else ""
            refuse(
                "quantize", kind, f"only with --method ar{drafts}",
                f"A pass over {rows} rows reads int4 weights {-(-rows // INT4_ROWS)} times, once "
                f"per {INT4_ROWS} rows; over 128 rows it takes 5 times as long as in bf16.",
            )  # fmt: skip

    @property
    def repeats(self) -> bool:
        """Whether all samples of a prompt are the same image, whatever their seeds.

        A relaxed rule may have random numbers at temperature 0 as well, as VVS has.
        """
        greedy = self.sampling.temperature == 0 and self.method.lossless
        return greedy and not TARGETS[self.model].painted

    def with_method(self, method: MethodSettings) -> "EngineSettings":
        """Return the same settings with another method; they keep the drafter if it needs one."""
        drafter = self.drafter_path if method.drafted else None
        return replace(self, method=method, drafter_path=drafter)
