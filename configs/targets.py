"""The target models. One entry says all that the program knows of one before it opens its files.

A new target is an entry here and in models/registry.py, a module in models/targets and a recipe.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from configs.fields import one_of, refuse
from configs.image_size import EMU3, EMU3_5, GLM_IMAGE, LUMINA_MGPT, LUMINA_MGPT2, ImageSizes

ROOT = Path(__file__).resolve().parent.parent
CHAMELEON_TOKENIZER = Path("chameleon/tokenizer")  # next to a checkpoint, as in LANTERN's layout
META_FILES = (
    "the folder `tokenizer` of Meta's Chameleon download (github.com/facebookresearch/chameleon), "
    "or `hf download Alpha-VLLM/Chameleon_7B_mGPT --include 'original_tokenizers/*' --local-dir "
    "ckpts/chameleon` and --tokenizer_path ckpts/chameleon/original_tokenizers"
)


@dataclass(frozen=True)
class Target:
    """A target model.

    folder: where its weights lie by default, relative to the repository.
    sources: where users get the files, by flag.
    flags: the flags that it has and other targets may lack.
    parts: files outside its folder, by flag: where they lie relative to the folder that holds it.
    sizes: what --target_size may be, of models that draw in many sizes.
    side: pixels of a side, of the published files of models that draw in one size.
    negative_prompt: default of --negative_prompt, of models that have it.
    guided: whether --cfg has a row without the prompt.
    """

    folder: str
    sources: Mapping[str, str]
    flags: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    sizes: ImageSizes | None = None
    side: int | None = None
    negative_prompt: str | None = None
    guided: bool = True


def _llamagen(stage: str, suffix: str, side: int) -> Target:
    """Return LlamaGen's text-to-image model of one stage."""
    folder = f"ckpts/llamagen/LlamaGen-T2I{suffix}"
    drafter = f"{stage}_drafter"
    return Target(
        folder=folder,
        sources={
            "model_path": f"`hf download jadohu/LlamaGen-T2I{suffix} --local-dir {folder}`",
            "drafter_path": f"`hf download jadohu/{drafter} "
            f"--local-dir ckpts/llamagen/trained_drafters/{drafter}`",
            "text_encoder_path": "`hf download google/flan-t5-xl "
            "--local-dir ckpts/llamagen/t5/flan-t5-xl`",
            "vq_path": "`hf download peizesun/llamagen_t2i vq_ds16_t2i.pt "
            "--local-dir ckpts/llamagen`",
        },
        flags=("text_encoder_path", "vq_path"),
        side=side,
        parts={"text_encoder_path": "t5/flan-t5-xl", "vq_path": "vq_ds16_t2i.pt"},
    )


# of the authors' script
_EMU3_NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, "
    "cropped, worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, "
    "username, blurry."
)
TARGETS = {
    "tiny": Target(
        folder="ckpts/tiny",
        sources={
            "model_path": "ckpts/tiny, which is included",
            "drafter_path": "ckpts/tiny/drafter, which is included",
        },
        flags=("tokenizer_path",),
        side=128,
    ),
    "anole": Target(
        folder="ckpts/anole/Anole-7b-v0.1-hf",
        sources={
            "model_path": "`hf download leloy/Anole-7b-v0.1-hf "
            "--local-dir ckpts/anole/Anole-7b-v0.1-hf`",
            "drafter_path": "`hf download jadohu/anole_drafter "
            "--local-dir ckpts/anole/trained_drafters/anole_drafter`",
        },
        flags=("tokenizer_path",),
        side=512,
    ),
    "lumina_mgpt": Target(
        folder="ckpts/lumina_mgpt/Lumina-mGPT-7B-768",
        sources={
            "model_path": "`hf download Alpha-VLLM/Lumina-mGPT-7B-768 "
            "--local-dir ckpts/lumina_mgpt/Lumina-mGPT-7B-768`",
            "drafter_path": "none is public; `main.py train_drafter` makes one",
        },
        flags=("tokenizer_path", "target_size"),
        sizes=LUMINA_MGPT,
    ),
    "lumina_mgpt2": Target(
        folder="ckpts/lumina_mgpt2/Lumina-mGPT-2.0",
        sources={
            "model_path": "`hf download Alpha-VLLM/Lumina-mGPT-2.0 "
            "--local-dir ckpts/lumina_mgpt2/Lumina-mGPT-2.0`; also -Omni",
            "drafter_path": "none is public; `main.py train_drafter` makes one",
            "vq_path": "`hf download ai-forever/MoVQGAN movqgan_270M.ckpt "
            "--local-dir ckpts/lumina_mgpt2`",
        },
        flags=("vq_path", "target_size"),
        parts={"vq_path": "movqgan_270M.ckpt"},
        sizes=LUMINA_MGPT2,
    ),
    "llamagen": _llamagen("llamagen", "", 256),
    "llamagen2": _llamagen("llamagen2", "-2", 512),
    "janus_pro": Target(
        folder="ckpts/janus_pro/Janus-Pro-7B",
        sources={
            "model_path": "`hf download deepseek-community/Janus-Pro-7B --local-dir "
            "ckpts/janus_pro/Janus-Pro-7B`; also -1B, and both of deepseek-ai",
            "drafter_path": "none is public; `main.py train_drafter` makes one",
        },
        side=384,
    ),
    "emu3": Target(
        folder="ckpts/emu3/Emu3-Gen-hf",
        sources={
            "model_path": "`hf download BAAI/Emu3-Gen-hf --local-dir ckpts/emu3/Emu3-Gen-hf`; or "
            "BAAI/Emu3-Gen, with BAAI/Emu3-VisionTokenizer in the folder Emu3-VisionTokenizer next "
            "to it",
            "drafter_path": "none is public; `main.py train_drafter` makes one",
        },
        flags=("target_size", "negative_prompt"),
        sizes=EMU3,
        negative_prompt=_EMU3_NEGATIVE,
    ),
    "emu3_5": Target(
        folder="ckpts/emu3_5/Emu3.5-Image",
        sources={
            "model_path": "`hf download BAAI/Emu3.5-Image --local-dir ckpts/emu3_5/Emu3.5-Image`; "
            "next to it BAAI/Emu3.5-VisionTokenizer in the folder Emu3.5-VisionTokenizer, and "
            "src/tokenizer_emu3_ibq of github.com/baaivision/Emu3.5",
            "drafter_path": "none is public; `main.py train_drafter` makes one",
        },
        flags=("target_size",),
        sizes=EMU3_5,
    ),
    "liquid": Target(
        folder="ckpts/liquid/Liquid_V1_7B",
        sources={
            "model_path": "`hf download Junfeng5/Liquid_V1_7B "
            "--local-dir ckpts/liquid/Liquid_V1_7B`",
            "drafter_path": "none is public; `main.py train_drafter` makes one",
        },
        flags=("tokenizer_path",),
        side=512,
    ),
    "glm_image": Target(
        folder="ckpts/glm_image/GLM-Image/vision_language_encoder",
        sources={
            "model_path": "`hf download zai-org/GLM-Image --local-dir ckpts/glm_image/GLM-Image`; "
            "for tokens without pictures, with `--include 'vision_language_encoder/*' "
            "'processor/*'`",
            "drafter_path": "none is public; `main.py train_drafter` makes one",
        },
        flags=("target_size",),
        sizes=GLM_IMAGE,
        guided=False,
    ),
}


def targets_with(flag: str) -> tuple[str, ...]:
    """Return the names of the targets that have a flag of their own."""
    return tuple(name for name, target in TARGETS.items() if flag in target.flags)


OWN_FLAGS = {
    flag: targets_with(flag)
    for flag in dict.fromkeys(flag for target in TARGETS.values() for flag in target.flags)
}


def model_defaults(model: str) -> dict[str, float]:
    """Return the settings of a model whose defaults are not those of other models, by flag."""
    return {"cfg": 1.0} if model in TARGETS and not TARGETS[model].guided else {}


def refuse_foreign_flags(settings: object) -> None:
    """Raise a SettingsError for a flag that only other targets than the settings' model have."""
    sampling = getattr(settings, "sampling", None)
    if sampling is not None and not TARGETS[settings.model].guided and sampling.cfg != 1:
        refuse("cfg", sampling.cfg, f"1 with --model {settings.model}, which has no guidance")
    for name, models in OWN_FLAGS.items():
        value = getattr(settings, name, None)
        if value is not None and settings.model not in models:
            allowed = f"only with --model {one_of(models)}"
            side = TARGETS[settings.model].side
            if name == "target_size" and side is not None:
                allowed += f"; {settings.model} makes images of {side} x {side} pixels"
            refuse(name, value, allowed)


def parts_next_to(model: str, model_path: str) -> dict[str, str]:
    """Return, by flag, where the files of a target lie that are not in its folder.

    They are looked for next to that folder; of a hub id, next to the target's default folder.
    Chameleon's tokenizer is found next to a folder anyway (models/files/chameleon_parts.py).
    """
    target, local = TARGETS[model], Path(model_path).is_dir()
    home = Path(os.path.abspath(model_path if local else ROOT / target.folder)).parent
    parts = {name: str(home / path) for name, path in target.parts.items()}
    tokenizer = home / CHAMELEON_TOKENIZER
    if not local and "tokenizer_path" in target.flags and tokenizer.is_dir():
        parts["tokenizer_path"] = str(tokenizer)
    return parts
