"""The targets by name: their folders, the parts beside these, and the flags that only some targets have."""

import os
from pathlib import Path

from configs.fields import refuse

ROOT = Path(__file__).resolve().parent.parent
# target -> its folder, relative to the repository; the others than `tiny` are laid out as in the paper's repository
MODELS = {
    "tiny": "ckpts/tiny",
    "anole": "ckpts/anole/Anole-7b-v0.1-hf",
    "lumina_mgpt": "ckpts/lumina_mgpt/Lumina-mGPT-7B-768",
    "llamagen": "ckpts/llamagen/LlamaGen-T2I",
    "llamagen2": "ckpts/llamagen/LlamaGen-T2I-2",
}
# Parts of a target that lie beside its folder: flag -> place there, as in LANTERN's layout.
PARTS = {
    name: {"text_encoder_path": "t5/flan-t5-xl", "vq_path": "vq_ds16_t2i.pt"}
    for name in ("llamagen", "llamagen2")
}
OWN_FLAGS = {  # flags that only some targets have
    "tokenizer_path": ("tiny", "anole", "lumina_mgpt"),
    "target_size": ("lumina_mgpt",),
    "text_encoder_path": tuple(PARTS),
    "vq_path": tuple(PARTS),
}
CHAMELEON_TOKENIZER = Path(
    "chameleon/tokenizer"
)  # beside a checkpoint, as in the paper's repository
META_FILES = (
    "the folder `tokenizer` of Meta's Chameleon download (github.com/facebookresearch/chameleon) or "
    "`original_tokenizers` of Alpha-VLLM/Chameleon_7B_mGPT on the Hugging Face hub"
)
# Where users get the files of a target, by flag.
_TRAINED = "ckpts/llamagen/trained_drafters"
_VQ = "`hf download peizesun/llamagen_t2i vq_ds16_t2i.pt --local-dir ckpts/llamagen`"
_T5 = "`hf download google/flan-t5-xl --local-dir ckpts/llamagen/t5/flan-t5-xl`"
SOURCES = {
    "tiny": {
        "model_path": "shipped as ckpts/tiny",
        "drafter_path": "shipped as ckpts/tiny/drafter",
    },
    "anole": {
        "model_path": "`hf download leloy/Anole-7b-v0.1-hf --local-dir ckpts/anole/Anole-7b-v0.1-hf`",
        "drafter_path": "`hf download jadohu/anole_drafter --local-dir ckpts/anole/trained_drafters/anole_drafter`",
    },
    "lumina_mgpt": {
        "model_path": "`hf download Alpha-VLLM/Lumina-mGPT-7B-768 --local-dir ckpts/lumina_mgpt/Lumina-mGPT-7B-768`",
        "drafter_path": "LANTERN's release (github.com/jadohu/LANTERN)",
    },
    "llamagen": {
        "model_path": "`hf download jadohu/LlamaGen-T2I --local-dir ckpts/llamagen/LlamaGen-T2I`",
        "drafter_path": f"`hf download jadohu/llamagen_drafter --local-dir {_TRAINED}/llamagen_drafter`",
        "text_encoder_path": _T5,
        "vq_path": _VQ,
    },
    "llamagen2": {
        "model_path": "`hf download jadohu/LlamaGen-T2I-2 --local-dir ckpts/llamagen/LlamaGen-T2I-2`",
        "drafter_path": f"`hf download jadohu/llamagen2_drafter --local-dir {_TRAINED}/llamagen2_drafter`",
        "text_encoder_path": _T5,
        "vq_path": _VQ,
    },
}


def refuse_foreign_flags(settings: object) -> None:
    """A SettingsError for a flag that only other targets than the settings' model have."""
    for name, models in OWN_FLAGS.items():
        found = getattr(settings, name, None)
        if found is not None and settings.model not in models:
            refuse(name, found, f"only with --model {' or '.join(models)}")


def parts_beside(model: str, model_path: str) -> dict[str, str]:
    """Where the parts of a target lie that are not in its folder, by flag: beside it, or beside the folder that it has
    here, for a hub id. Chameleon's tokenizer is looked for beside a folder anyway (models/files/chameleon_parts.py)."""
    local = Path(model_path).is_dir()
    home = Path(os.path.abspath(model_path if local else ROOT / MODELS[model])).parent
    parts = {name: str(home / place) for name, place in PARTS.get(model, {}).items()}
    tokenizer = home / CHAMELEON_TOKENIZER
    if not local and model in OWN_FLAGS["tokenizer_path"] and tokenizer.is_dir():
        parts["tokenizer_path"] = str(tokenizer)
    return parts
