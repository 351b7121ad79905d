"""The target models. One entry says all that the program knows of one before it opens its files.

A new target is an entry, a module in models/targets and a recipe.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path

from configs.fields import ROOT, one_of, refuse
from configs.rules import Code

CHAMELEON_TOKENIZER = Path("chameleon/tokenizer")  # next to a checkpoint, as in LANTERN's layout
META_FILES = (
    "the folder `tokenizer` of Meta's Chameleon download (github.com/facebookresearch/chameleon), "
    "or `original_tokenizers` of `hf download Alpha-VLLM/Chameleon_7B_mGPT --include "
    "'original_tokenizers/*' --local-dir ckpts/anole/chameleon`"
)
STRETCH = 4.0  # greatest ratio of the sides


@dataclass(frozen=True)
class ImageSizes:
    """What --target_size may be."""

    cell: int  # pixels; sides are given to the model in cells
    largest: int  # side of the largest square
    default: str  # where neither the flag nor the folder's name says one
    named: tuple[str, ...] = ()  # sizes that a folder's name may end in, as Lumina-mGPT-7B-512
    preview: int = 0  # side in tokens of the small grid that comes before a square's, if any does

    def usual(self, model_path: str) -> str:
        """Return the size that a public checkpoint is named after, or the model's default."""
        match = re.search("-([0-9]+)$", folder_names(model_path)[0])
        return match[1] if match and match[1] in self.named else self.default

    def small_grid(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the small grid before that of an image of this shape."""
        # Cut, not rounded, as in transformers' GlmImageProcessor.
        rows, columns = sqrt(height / width) * self.preview, sqrt(width / height) * self.preview
        return int(rows), int(columns)


def folder_names(path: str) -> tuple[str, str]:
    """Return the names of a folder or hub id and of the folder around it."""
    whole = os.path.abspath(path) if os.path.isdir(path) else path
    *_, grandparent, around, name = ("", "", "", *Path(whole).parts)
    if around == "snapshots":  # of the hub's cache: models--owner--name/snapshots/revision
        return grandparent, ""
    return name, around


def inner_folder(folder: Path, name: str) -> Path:
    """Return the folder of that name where the one around it, without a config.json, is given."""
    inner = folder / name
    return inner if inner.is_dir() and not (folder / "config.json").exists() else folder


# Whether a config.json, or the keys of the weights beside it, can only be this model's.
Holds = Callable[[dict, Callable[[], set[str]]], bool]


@dataclass(frozen=True)
class Signs:
    """What tells a published model's folder from those of other models."""

    title: str  # as its authors write it
    words: tuple[str, ...]  # patterns of its folders' names, in small letters with dashes
    model_types: tuple[str, ...] = ()  # of config.json: transformers' name, then the authors'
    shared: bool = False  # whether other models have this model_type as well
    also: Holds | None = None  # what has to hold beside the model_type

    def hold(self, config: dict, keys: Callable[[], set[str]]) -> bool:
        """Return whether a folder's files can only be this model's."""
        if self.model_types and config.get("model_type") not in self.model_types:
            return False
        if self.also is not None:
            return self.also(config, keys)
        return bool(self.model_types) and not self.shared


def is_emu3_5(config: dict, keys: Callable[[], set[str]]) -> bool:
    """Tell Emu3.5 from BAAI/Emu3-Gen, whose model_type is the same."""
    # by the vocabulary where weights are still missing, else by the norms of queries
    return config.get("vocab_size") == 282_926 or any(".q_norm." in key for key in keys())


def _whole(value: object) -> int:
    return value if type(value) is int else 0


@dataclass(frozen=True)
class Target:
    """A target model: its files, flags and code."""

    # makes the models.targets.family.Family that opens its files
    family: Code
    folder: str  # where its weights lie by default, relative to the repository
    signs: Signs
    hub: str | None = None  # its repository on the hub; None: it is part of this one
    download: str | None = None  # the folder of that repository, where it is not `folder`
    also: str = ""  # more for users about where they get it
    drafter: str | None = None  # repository of its drafter
    others: Mapping[str, str] = field(default_factory=dict)  # where users get other files, by flag
    flags: tuple[str, ...] = ()  # the flags that it has and other targets may lack
    # files outside its folder, by flag: where they lie relative to the folder that holds it
    parts: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()  # what else is read next to its folder, without a flag
    sizes: ImageSizes | None = None  # of models that draw in many sizes
    side: int | None = None  # pixels, of the published files of models that draw in one size
    negative_prompt: str | None = None  # default of --negative_prompt, of models that have it
    painted: bool = False  # whether equal tokens of other seeds are other pictures
    guided: bool = True  # whether --cfg has a row without the prompt

    @property
    def sources(self) -> dict[str, str]:
        """Where users get the files, by flag."""
        if self.hub is None:
            parts = {"model_path": self.folder, "drafter_path": f"{self.folder}/drafter"}
            return {flag: f"{path}, which is included" for flag, path in parts.items()}
        model = f"`hf download {self.hub} --local-dir {self.download or self.folder}`{self.also}"
        drafter = "none is public; `main.py train_drafter` makes one"
        if self.drafter is not None:
            home = Path(self.folder).parent / "trained_drafters" / Path(self.drafter).name
            drafter = f"`hf download {self.drafter} --local-dir {home}`"
        return {"model_path": model, "drafter_path": drafter, **self.others}

    def parts_next_to(self, model_path: str) -> dict[str, str]:
        """Return, by flag, where the files of the target lie that are not in its folder.

        They are looked for next to that folder; of a hub id, next to the default folder.
        Chameleon's tokenizer is found next to a folder anyway (models/files/chameleon_parts.py).
        """
        local = Path(model_path).is_dir()
        home = Path(os.path.abspath(model_path if local else ROOT / self.folder)).parent
        parts = {name: str(home / path) for name, path in self.parts.items()}
        tokenizer = home / CHAMELEON_TOKENIZER
        if not local and "tokenizer_path" in self.flags and tokenizer.is_dir():
            parts["tokenizer_path"] = str(tokenizer)
        return parts


# its config.json in LANTERN's layout has no model_type of its own
_LLAMAGEN = Signs("LlamaGen", ("llamagen",), also=lambda config, _: "caption_dim" in config)


def _llamagen(stage: str, suffix: str, side: int) -> Target:
    """Return LlamaGen's text-to-image model of one stage."""
    t5, vq = "t5/flan-t5-xl", "vq_ds16_t2i.pt"
    return Target(
        f"models.targets.llamagen:{stage}",
        f"ckpts/llamagen/LlamaGen-T2I{suffix}",
        _LLAMAGEN,
        f"jadohu/LlamaGen-T2I{suffix}",
        drafter=f"jadohu/{stage}_drafter",
        others={
            "text_encoder_path": f"`hf download google/flan-t5-xl --local-dir ckpts/llamagen/{t5}`",
            "vq_path": f"`hf download peizesun/llamagen_t2i {vq} --local-dir ckpts/llamagen`",
        },
        flags=("text_encoder_path", "vq_path"),
        parts={"text_encoder_path": t5, "vq_path": vq},
        side=side,
    )


# of the authors' script
_EMU3_NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
    "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
    "username, blurry."
)
# of GLM-Image's whole repository, for text and for diffusers' pipeline
_GLM_PARTS = (
    "processor", "model_index.json", "scheduler", "text_encoder", "tokenizer", "transformer", "vae",
)  # fmt: skip
# digits (mnist) and clothes (fmnist), of github.com/teddykoker/image-gpt
_IMAGE_GPT = (
    "`curl -fL --create-dirs https://raw.githubusercontent.com/teddykoker/image-gpt/"
    "b967b2469ffdde18000e3172bb7cf7d95e9f4083/models/{mnist,fmnist}_gen.ckpt "
    "-o 'ckpts/image_gpt/#1/model.ckpt'`"
)
# Chameleon's models are alike to the last key, so only their names tell them apart.
_CHAMELEON = ("chameleon",)
_ANOLE = Signs("Anole", ("anole",), _CHAMELEON, shared=True)
TARGETS = {
    "tiny": Target(
        "models.targets.chameleon:Chameleon",
        "ckpts/tiny",
        _ANOLE,
        flags=("tokenizer_path",),
        side=128,
    ),
    "anole": Target(
        "models.targets.chameleon:Chameleon",
        "ckpts/anole/Anole-7b-v0.1-hf",
        _ANOLE,
        "leloy/Anole-7b-v0.1-hf",
        drafter="jadohu/anole_drafter",
        flags=("tokenizer_path",),
        side=512,
    ),
    "lumina_mgpt": Target(
        "models.targets.chameleon:LuminaMgpt",
        "ckpts/lumina_mgpt/Lumina-mGPT-7B-768",
        Signs("Lumina-mGPT", ("lumina",), _CHAMELEON, shared=True),
        "Alpha-VLLM/Lumina-mGPT-7B-768",
        drafter="sihwanpark/LANTERN-Lumina-mGPT-7B-768",
        flags=("tokenizer_path", "target_size"),
        # an image begins with its size in units of 32 pixels; the public checkpoints know areas of
        # about 512, 768 or 1024 squared
        sizes=ImageSizes(32, 1024, "768", ("512", "768", "1024")),
    ),
    "lumina_mgpt2": Target(
        "models.targets.chameleon:LuminaMgpt2",
        "ckpts/lumina_mgpt2/Lumina-mGPT-2.0",
        Signs(
            "Lumina-mGPT 2.0",
            ("lumina-mgpt-?2",),
            _CHAMELEON,
            shared=True,
            # image codes begin at 155,000; the other models have 65,536 ids
            also=lambda config, _: _whole(config.get("vocab_size")) > 155_000,
        ),
        "Alpha-VLLM/Lumina-mGPT-2.0",
        also="; also -Omni",
        others={
            "vq_path": "`hf download ai-forever/MoVQGAN movqgan_270M.ckpt "
            "--local-dir ckpts/lumina_mgpt2`"
        },
        flags=("vq_path", "target_size"),
        parts={"vq_path": "movqgan_270M.ckpt"},
        sizes=ImageSizes(32, 768, "768"),  # larger areas do not fit its positions
    ),
    "llamagen": _llamagen("llamagen", "", 256),
    "llamagen2": _llamagen("llamagen2", "-2", 512),
    "janus_pro": Target(
        "models.targets.janus:JanusPro",
        "ckpts/janus_pro/Janus-Pro-7B",
        Signs("Janus-Pro", ("janus",), ("janus", "multi_modality")),
        "deepseek-community/Janus-Pro-7B",
        also="; also -1B, and both of deepseek-ai",
        side=384,
    ),
    "emu3": Target(
        "models.targets.emu3:Emu3",
        "ckpts/emu3/Emu3-Gen-hf",
        Signs("Emu3", ("emu3",), ("emu3",)),
        "BAAI/Emu3-Gen-hf",
        flags=("target_size", "negative_prompt"),
        # trained on areas of about 720 squared; 768 squared no longer fits its positions
        sizes=ImageSizes(8, 760, "720"),
        negative_prompt=_EMU3_NEGATIVE,
    ),
    "emu3_5": Target(
        "models.targets.emu3:Emu35",
        "ckpts/emu3_5/Emu3.5-Image",
        Signs("Emu3.5", ("emu3-5", "emu3p5", "emu35"), ("Emu3",), also=is_emu3_5),
        "BAAI/Emu3.5-Image",
        also="; next to it BAAI/Emu3.5-VisionTokenizer in the folder Emu3.5-VisionTokenizer, and "
        "src/tokenizer_emu3_ibq of github.com/baaivision/Emu3.5",
        flags=("target_size",),
        beside=("Emu3.5-VisionTokenizer", "tokenizer_emu3_ibq"),
        # trained on areas of about 1,024 squared; 55 x 73 tokens is its script's default
        sizes=ImageSizes(16, 1024, "1168x880"),
    ),
    "liquid": Target(
        "models.targets.liquid:Liquid",
        "ckpts/liquid/Liquid_V1_7B",
        Signs("Liquid", ("liquid",), ("gemma",), also=lambda c, _: c.get("vocab_size") != 256_000),
        "Junfeng5/Liquid_V1_7B",
        flags=("tokenizer_path",),
        side=512,
    ),
    "glm_image": Target(
        "models.targets.glm_image:GlmImage",
        "ckpts/glm_image/GLM-Image/vision_language_encoder",
        Signs("GLM-Image", ("glm-image",), ("glm_image",)),
        "zai-org/GLM-Image",
        download="ckpts/glm_image/GLM-Image",
        also="; for tokens without pictures, with `--include 'vision_language_encoder/*' "
        "'processor/*'`",
        flags=("target_size",),
        beside=_GLM_PARTS,
        # its positions here have room for 2,048 squared
        sizes=ImageSizes(32, 2048, "1024", preview=16),
        painted=True,
        guided=False,
    ),
    "image_gpt": Target(
        "models.targets.image_gpt:ImageGpt",
        "ckpts/image_gpt/mnist",
        Signs("Image GPT", ("image-gpt",), also=lambda config, _: "num_pixels" in config),
        "teddykoker/image-gpt",
        others={"model_path": _IMAGE_GPT},
        side=28,
        guided=False,
    ),
}


def targets_with(flag: str) -> tuple[str, ...]:
    """Return the targets that have a flag."""
    return tuple(name for name, target in TARGETS.items() if flag in target.flags)


def unguided_targets() -> tuple[str, ...]:
    """Return the targets without guidance."""
    return tuple(name for name, target in TARGETS.items() if not target.guided)


def own_flags() -> list[str]:
    """Return the flags that some targets lack."""
    return [*dict.fromkeys(flag for target in TARGETS.values() for flag in target.flags)]


def refuse_foreign_flag(model: str, flag: str, value: object) -> None:
    """Raise a SettingsError for a flag that only other targets have, if it was given."""
    target = TARGETS[model]
    if value is None or flag in target.flags:
        return
    allowed = f"only with --model {one_of(targets_with(flag))}"
    if flag == "target_size" and target.side is not None:
        allowed += f"; {model} makes images of {target.side} x {target.side} pixels"
    refuse(flag, value, allowed)


def model_place(model: str, path: str | None) -> str:
    """Return the target's folder or hub id: the path given, or the folder inside it, or our own."""
    default = ROOT / TARGETS[model].folder
    given = default if path is None else Path(os.path.expanduser(path))
    inner = inner_folder(given, default.name)
    return str(inner) if inner != given or path is None else path


def parse_size(text: str, sizes: ImageSizes) -> tuple[int, int]:
    """Return width and height in pixels of "768" or "1024x576".

    A SettingsError for a side that is no whole number of cells, and for an image larger than the
    largest square or longer than four times its other side.
    """
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    width, height = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    short, long = min(width, height), max(width, height)
    fits = short > 0 and not width % sizes.cell and not height % sizes.cell
    if not fits or width * height > sizes.largest**2 or long > STRETCH * short:
        allowed = (
            f"a side, or width x height as 1024x576, in multiples of {sizes.cell}, "
            f"at most {sizes.largest} x {sizes.largest} pixels and {STRETCH:g} to 1"
        )
        refuse("target_size", text, allowed)
    return width, height
